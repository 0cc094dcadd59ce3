/* cards.h - devices that a test opens by name: "card", or "card:0" to "card:7", each with memory and counts of its own
 * (device_backend.h); and what tests of models on them share: texts that are the CPU's, plans. A test that includes
 * this gets the backend "card" beside the library's. */
#ifndef RATOON_TESTS_HELP_CARDS_H
#define RATOON_TESTS_HELP_CARDS_H

#include "gpu/fake_cuda.h"
#include "model_helper.h"
#include "ratoon.h"

enum { CARDS = 8 };
extern const char *device;                         /* the backend of engines with one: "card" */
extern const char *card_level;                     /* what computes: "cpu" */
extern uint64_t card_memory[CARDS];                /* of those that are opened next; 0: plenty */
extern int64_t card_alloc_fails[CARDS], card_fails[CARDS];     /* DeviceLog's alloc_fail_in and fail_in of the next */
extern DeviceLog *card_log[CARDS];                 /* of those that were opened last */
extern uint64_t expert_vram, expert_ram;           /* of engines with a device */

rt_options options_of(const PublicRig *p, const RigOptions *o, int32_t gpu_layers);

/* Fails without a driver: RATOON_CUDA_DRIVER names none. */
void expect_driver(void);
/* The same, for what asks the emulated driver for its counts, or for a second card: on a real card such a test is
 * skipped. */
FakeCuda *emulated(void);

/* A progress hook that notes that something is loaded; ud: bool. */
bool loading(void *ud, const char *what, int64_t done, int64_t total);

/* ---- the same text ---- */

enum { CTX = 300, FIRST = 90 };
typedef struct { int32_t text[2][TEXT]; int32_t resumable; uint8_t *image; size_t image_bytes; } Told;

void open_engine(rt_engine **g, rt_session **s, rt_step **st, const rt_options *o, int32_t budget);
/* The same, with a session that draws. */
void open_all(rt_engine **g, rt_session **s, rt_step **st, const rt_options *o, int32_t budget);
void tell(rt_step *st, rt_session *s, int32_t *text);
/* A text with trees; then one that goes back to a mark within the first prompt; then the image of that place, to be
 * freed. */
void run(Told *out, const rt_options *o, int32_t budget);
/* Goes on from an image. */
void go_on(int32_t *text, const rt_options *o, const Told *from);
void same_told(const Told *a, const Told *b, const char *what, int32_t n);

/* A thread's: a text by a session and a step of its own. What fails leaves it shorter. */
typedef struct { rt_engine *g; int32_t text[TEXT]; } Teller;
void *tell_alone(void *teller);

/* Two texts, whose canvases share passes, of a model that denoises. fake: the emulated driver, if it is asked whether
 * anything is taken after the first block; or NULL. */
enum { DENOISED = 64, TEXTS = 2 };                 /* tokens of each text, of blocks of 32 */
void denoise(int32_t text[TEXTS][DENOISED], const rt_options *o, FakeCuda *fake);

/* ---- plans ---- */

void plan_of(rt_needs *n, const rt_options *o, const rt_session_options *so, const rt_step_options *st);
uint64_t on_device(const rt_needs *n, uint64_t sessions);

#endif
