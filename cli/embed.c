#include "cli/embed.h"

/* The assembler reads the files, from the repository's root like every compile. */
#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n"                                                                   \
            ".global " #name "\n"                                                                  \
            ".balign 16\n" #name ":\n"                                                             \
            ".incbin \"" file "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".previous\n")

EMBED(embed_crd_infd, "manifests/crds/inferencedeployments.yaml");
EMBED(embed_crd_wp, "manifests/crds/workerpools.yaml");
EMBED(embed_crd_ninv, "manifests/crds/nodeinventories.yaml");
EMBED(embed_sample_chat, "manifests/samples/chat.yaml");
