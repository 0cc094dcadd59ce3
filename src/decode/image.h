/* image.h - a session at one place as bytes, and back.
 * What makes text and state go on to the bit: the tokens, the target's committed state; and what makes the drafter go on as well: its
 * keys/values and the taps that it holds back. Nothing else of a session depends on its past, but the look-up of the text, which is made
 * from the tokens again. The size is a function of the place alone; every byte is defined, and a checksum covers all of them.
 *
 *   ImageHead | identity | tokens [n] i32 | target | drafter | taps [hold, tap_width] f32       each part from a multiple of 64 on, zeros between */
#ifndef RATOON_DECODE_IMAGE_H
#define RATOON_DECODE_IMAGE_H

#include "decode/spec.h"

enum { IMAGE_VERSION = 3, IMAGE_IDENTITY = 512 };

/* The parts of an image in the bytes that were read, which need no alignment and have to outlive it. */
typedef struct {
    const char    *identity; size_t n_identity;
    int32_t        n_tokens, draft_P, draft_ring, n_wait;                         /* draft_P: what the drafter had taken; n_wait: taps that count */
    const uint8_t *tokens, *target, *draft, *taps;
    size_t         n_target, n_draft, n_taps;
} Image;

/* Checks magic, version, sizes and checksum of n bytes, whatever they are. ST_FORMAT with what is wrong. */
Status image_read(Image *out, const uint8_t *bytes, size_t n, Error *err);

/* `at`: a place of state_place. Waiting taps become drafter keys/values first, where sp drafts; the last block is confirmed. */
size_t session_image_bytes(const Session *s, const char *identity, int32_t at);
Status session_image(Spec *sp, Session *s, const char *identity, int32_t at, uint8_t *out, size_t n, Error *err);
/* The session then holds n_tokens committed tokens and no root. Refuses before it touches the session; empty after ST_BACKEND. */
Status session_load(Session *s, const char *identity, const uint8_t *bytes, size_t n, Error *err);

#endif
