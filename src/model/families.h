/* families.h - the list of target model families. A family is one file that defines one Family, named here. */
#ifndef RATOON_MODEL_FAMILIES_H
#define RATOON_MODEL_FAMILIES_H

#define FAMILIES(X) \
    X(family_llama) \
    X(family_qwen3) \
    X(family_qwen35)

#endif
