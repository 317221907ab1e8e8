#include "local/names.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

static bool low_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_dns_label(const char *s, size_t n)
{
    if (!n || !low_alnum(s[0]) || !low_alnum(s[n - 1]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!low_alnum(s[i]) && s[i] != '-')
            return false;
    return true;
}

const char *name_check_dns_label(const char *s)
{
    size_t n = strlen(s);
    if (n > 63)
        return "must be no more than 63 bytes";
    return is_dns_label(s, n) ? NULL
                              : "a lowercase RFC 1123 label must consist of lower case "
                                "alphanumeric characters or '-', "
                                "and must start and end with an alphanumeric character (e.g. "
                                "'my-name',  or '123-abc', "
                                "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
}

static bool is_subdomain(const char *s, size_t n)
{
    size_t start = 0;
    for (size_t i = 0; i <= n; i++)
        if (i == n || s[i] == '.') {
            if (!is_dns_label(s + start, i - start))
                return false;
            start = i + 1;
        }
    return true;
}

static const char subdomain_text[] =
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
    "validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const char *name_check_dns_subdomain(const char *s)
{
    size_t n = strlen(s);
    if (n > 253)
        return "must be no more than 253 bytes";
    return is_subdomain(s, n) ? NULL : subdomain_text;
}

const char *name_check_dns1035_label(const char *s)
{
    size_t n = strlen(s);
    if (n > 63)
        return "must be no more than 63 bytes";
    if (is_dns_label(s, n) && isalpha((unsigned char)s[0]))
        return NULL;
    return "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
           "an "
           "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
           "'abc-123', "
           "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
}

const char *name_check_path_segment(const char *s)
{
    if (!strcmp(s, "."))
        return "may not be '.'";
    if (!strcmp(s, ".."))
        return "may not be '..'";
    if (strchr(s, '/'))
        return "may not contain '/'";
    if (strchr(s, '%'))
        return "may not contain '%'";
    return NULL;
}

static bool is_qualified(const char *s, size_t n)
{
    if (!n || !isalnum((unsigned char)s[0]) || !isalnum((unsigned char)s[n - 1]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return false;
    return true;
}

const char *name_check_label_key(const char *s)
{
    const char *slash = strchr(s, '/'), *name = slash ? slash + 1 : s;
    if (slash && (slash == s))
        return "prefix part must be non-empty";
    if (slash && strchr(name, '/'))
        return "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and "
               "must start "
               "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
               "'123-abc', "
               "regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an "
               "optional "
               "DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
    if (slash && (slash - s > 253 || !is_subdomain(s, (size_t)(slash - s))))
        return "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
               "characters, '-' or '.', and must start and end with an alphanumeric character "
               "(e.g. "
               "'example.com', regex used for validation is "
               "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    if (!*name)
        return "name part must be non-empty";
    if (strlen(name) > 63)
        return "name part must be no more than 63 bytes";
    if (!is_qualified(name, strlen(name)))
        return "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
               "and end "
               "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex "
               "used "
               "for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    return NULL;
}

const char *name_check_label_value(const char *s)
{
    size_t n = strlen(s);
    if (n > 63)
        return "must be no more than 63 bytes";
    if (!n || is_qualified(s, n))
        return NULL;
    return "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' "
           "or '.', "
           "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value', "
           " or "
           "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
}
