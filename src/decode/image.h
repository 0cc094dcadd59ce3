/* image.h - a session at one place as bytes, and back.
 * An image holds what makes text and state continue bit for bit: the tokens and the target's committed state; and what
 * makes the drafter continue too: its keys/values and the taps that it holds back. Nothing else of a session depends on
 * its past except the n-gram index, which is rebuilt from the tokens. The size is a function of the place alone; every
 * byte is defined, and a checksum covers all of them.
 *
 *   ImageHead | identity | tokens [n] i32 | target | drafter | taps [hold, tap_width] f32
 *   each part from a multiple of 64 on, zeros between */
#ifndef RATOON_DECODE_IMAGE_H
#define RATOON_DECODE_IMAGE_H

#include "decode/spec.h"

enum { IMAGE_VERSION = 4, IMAGE_IDENTITY = 512 };

/* The parts of an image, pointing into the bytes that were read; those need no alignment and must outlive it. */
typedef struct {
    const char    *identity; size_t n_identity;
    int32_t        n_tokens, draft_P, draft_ring, n_wait;                   /* draft_P: positions that the drafter had
                                                                             * taken; n_wait: valid taps */
    const uint8_t *tokens, *target, *draft, *taps;
    size_t         n_target, n_draft, n_taps;
} Image;

/* Checks magic, version, sizes and checksum of n arbitrary bytes. ST_FORMAT names what is wrong. */
Status image_read(Image *out, const uint8_t *bytes, size_t n, Error *err);

/* `at`: a place that state_place returns. Waiting taps become drafter keys/values first if sp drafts; the last block is
 * confirmed. */
size_t session_image_bytes(const Session *s, const char *identity, int32_t at);
Status session_image(Spec *sp, Session *s, const char *identity, int32_t at, uint8_t *out, size_t n, Error *err);
/* Uses the model's own backends, like session_open. Afterwards the session holds n_tokens committed tokens and no root.
 * Errors are found before the session is touched; after ST_BACKEND it is empty. */
Status session_load(Session *s, const char *identity, const uint8_t *bytes, size_t n, Error *err);

#endif
