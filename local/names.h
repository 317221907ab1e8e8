/* names.h: the name formats of Kubernetes (RFC 1123 labels and subdomains, qualified names, label
 * values). Each check returns NULL when the text is right, else the sentence that the API server
 * prints. */
#pragma once
#include <stdbool.h>

const char *name_check_dns_label(const char *s);     /* at most 63 */
const char *name_check_dns_subdomain(const char *s); /* at most 253 */
const char *name_check_dns1035_label(const char *s); /* services */
const char *name_check_path_segment(const char *s);  /* rbac names: anything but . .. / % */
const char *name_check_label_key(const char *s);     /* [prefix/]name */
const char *name_check_label_value(const char *s);
