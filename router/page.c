/* The chat page, put into the program when it is built. */
#include "router/router.h"

#ifndef PAGE_FILE
#define PAGE_FILE "router/chat.html"
#endif
__asm__(".section .rodata\n"
        ".global page_html\n"
        ".type page_html, @object\n"
        "page_html:\n"
        ".incbin \"" PAGE_FILE "\"\n"
        ".global page_html_end\n"
        "page_html_end:\n"
        ".byte 0\n"
        ".size page_html, . - page_html\n"
        ".previous\n");
extern const char page_html_end[];

size_t page_html_bytes(void)
{
    return (size_t)(page_html_end - page_html);
}
