/* families.h - the list of target model families. A file defines one, or two that share all but the feed-forward
 * part. */
#ifndef RATOON_MODEL_FAMILIES_H
#define RATOON_MODEL_FAMILIES_H

#define FAMILIES(X) \
    X(family_llama) \
    X(family_qwen3) \
    X(family_qwen3moe) \
    X(family_qwen35) \
    X(family_qwen35moe) \
    X(family_laguna) \
    X(family_gemma4)

#endif
