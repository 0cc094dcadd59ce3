/* ratoon: the program. It chooses the command; each command is a file of its own and knows the library through ratoon.h. */
#include <string.h>
#include <unistd.h>

#include "programs/program.h"

/* A model file is mapped while it is read. If somebody cuts it meanwhile the kernel can only send this signal. */
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
    sigaction(SIGPIPE, &(struct sigaction) { .sa_handler = SIG_IGN }, NULL);       /* a closed pipe is a failed write, and is said */
    if (argc < 2) {
        commands_list(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    const Command *c = command_find(name);
    if (!c) {
        fprintf(stderr, "ratoon: unknown command '%s' (see ratoon help)\n", name);
        return EXIT_USAGE;
    }
    argv[1] = (char *) c->name;
    return c->run(argc - 1, argv + 1);
}
