/* ratoon: the program. It selects the command; each command has its own file and uses the library through ratoon.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/program.h"
#include "ratoon_lab.h"

/* Model files are mmapped. If one is truncated while it is read, the kernel reports it by this signal. */
static void on_bus_error(int sig)
{
    static const char line[] = "ratoon: a file was cut short while it was being read (or its disk failed)\n";
    (void) sig;
    ssize_t ignored = write(STDERR_FILENO, line, sizeof line - 1);
    (void) ignored;
    _exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
    sigaction(SIGBUS, &(struct sigaction) { .sa_handler = on_bus_error }, NULL);
    /* writing to a closed connection then fails with an error; output_failed sees to standard output */
    sigaction(SIGPIPE, &(struct sigaction) { .sa_handler = SIG_IGN }, NULL);
    sigaction(SIGXFSZ, &(struct sigaction) { .sa_handler = SIG_IGN }, NULL); /* likewise exceeding ulimit -f */
    const char *driver = getenv("RATOON_CUDA_DRIVER");         /* the tests' emulated one */
    if (driver && *driver) rt_card_driver("cuda", driver);
    if (argc < 2) {
        commands_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    const Command *c = command_find(name);
    if (!c) return command_unknown("ratoon", name);
    argv[1] = (char *) c->name;
    int status = c->run(argc - 1, argv + 1);
    if (status != EXIT_FINE) error_print();
    return status;
}
