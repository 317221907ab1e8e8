#include "lib/io/codec.h"

#include <errno.h>

#define MAX_LINE    256u /* of a chunk's size line */
#define MAX_TRAILER 4096u

void codec_init(struct codec *c)
{
    *c = (struct codec){.state = CODEC_IN_HEAD};
    buf_init(&c->head, CODEC_MAX_HEAD);
}

void codec_fini(struct codec *c)
{
    buf_fini(&c->head);
}

void codec_reset(struct codec *c)
{
    struct buf head = c->head;
    buf_reset(&head);
    *c = (struct codec){.state = CODEC_IN_HEAD, .head = head};
}

static int bad(struct codec *c, struct err *e, const char *what)
{
    c->state = CODEC_FAILED;
    return err_set(e, EBADMSG, "the peer's answer is not HTTP/1.1: %s", what);
}

struct str codec_header(const struct codec *c, const char *name)
{
    struct str rest = buf_view(&c->head), line, key;
    rest = str_cut(rest, '\n', &line);
    while (rest.n) {
        rest = str_cut(rest, '\n', &line);
        struct str value = str_cut(line, ':', &key);
        if (key.n < line.n && str_ieq_c(key, name))
            return str_trim(value);
    }
    return (struct str){NULL, 0};
}

static size_t count_header(const struct codec *c, const char *name)
{
    struct str rest = buf_view(&c->head), line, key;
    size_t n = 0;
    while (rest.n) {
        rest = str_cut(rest, '\n', &line);
        str_cut(line, ':', &key);
        n += key.n < line.n && str_ieq_c(key, name);
    }
    return n;
}

static bool has_token(struct str list, const char *token)
{
    while (list.n) {
        struct str one;
        list = str_cut(list, ',', &one);
        if (str_ieq_c(str_trim(one), token))
            return true;
    }
    return false;
}

static int parse_status_line(struct codec *c, struct err *e)
{
    struct str h = buf_view(&c->head);
    if (h.n < 13 || memcmp(h.p, "HTTP/1.", 7) != 0 || (h.p[7] != '0' && h.p[7] != '1') ||
        h.p[8] != ' ')
        return bad(c, e, "status line");
    uint64_t status;
    if (str_to_u64((struct str){h.p + 9, 3}, 100, 599, &status) ||
        (h.p[12] != ' ' && h.p[12] != '\r' && h.p[12] != '\n'))
        return bad(c, e, "status code");
    c->status = (int)status;
    c->keep_alive = h.p[7] == '1';
    return 0;
}

/* Decides how the body is framed (RFC 9112 §6.3). */
static int parse_head(struct codec *c, struct err *e)
{
    int rc = parse_status_line(c, e);
    if (rc)
        return rc;
    struct str connection = codec_header(c, "connection");
    if (has_token(connection, "close"))
        c->keep_alive = false;
    struct str length = codec_header(c, "content-length");
    struct str coding = codec_header(c, "transfer-encoding");
    if (count_header(c, "content-length") > 1 || count_header(c, "transfer-encoding") > 1 ||
        (length.p && coding.p))
        return bad(c, e, "its framing is ambiguous");
    if (c->status < 200) {
        if (c->status == 101)
            return bad(c, e, "it switches protocols");
        return 0;
    }
    if (c->status == 204 || c->status == 304) {
        c->left = 0;
        c->state = CODEC_IN_LENGTH;
    } else if (coding.p) {
        if (!str_ieq_c(coding, "chunked"))
            return bad(c, e, "unknown transfer coding");
        c->state = CODEC_IN_SIZE_LINE;
    } else if (length.p) {
        if (str_to_u64(length, 0, INT64_MAX, &c->left))
            return bad(c, e, "content length");
        c->state = CODEC_IN_LENGTH;
    } else {
        c->keep_alive = false;
        c->state = CODEC_UNTIL_CLOSE;
    }
    return 0;
}

/* Copies up to and including the empty line. */
static int feed_head(struct codec *c, struct str *data, struct err *e)
{
    while (data->n) {
        const char *nl = memchr(data->p, '\n', data->n);
        size_t n = nl ? (size_t)(nl - data->p) + 1 : data->n;
        size_t line_start = c->head.n;
        while (line_start && c->head.data[line_start - 1] != '\n')
            line_start--;
        if (buf_append(&c->head, data->p, n))
            return bad(c, e, "its head is too large");
        data->p += n;
        data->n -= n;
        if (!nl)
            return CODEC_MORE;
        struct str line = str_trim((struct str){c->head.data + line_start, c->head.n - line_start});
        if (line.n || !line_start) {
            if (!line.n)
                return bad(c, e, "empty status line");
            continue;
        }
        if (memchr(c->head.data, 0, c->head.n))
            return bad(c, e, "NUL in its head");
        int rc = parse_head(c, e);
        if (rc)
            return rc;
        if (c->status >= 200)
            return CODEC_HEADERS;
        buf_reset(&c->head);
    }
    return CODEC_MORE;
}

static int hex(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    ch = (char)(ch | 32);
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static int feed_size_line(struct codec *c, struct str *data, struct err *e)
{
    while (data->n) {
        char ch = *data->p++;
        data->n--;
        if (++c->line > MAX_LINE)
            return bad(c, e, "chunk size line");
        if (ch == '\n') {
            if (!c->digits)
                return bad(c, e, "chunk without a size");
            c->state = c->left ? CODEC_IN_CHUNK : CODEC_IN_TRAILER;
            c->line = 0;
            c->digits = c->extension = false;
            c->matched = 0;
            return CODEC_MORE;
        }
        int d = hex(ch);
        if (!c->extension && d >= 0) {
            if (c->left >> 56)
                return bad(c, e, "chunk size");
            c->left = c->left << 4 | (uint64_t)d;
            c->digits = true;
        } else if (ch == '\r' || ch == ';' || ch == ' ' || ch == '\t' || c->extension) {
            c->extension = true;
        } else {
            return bad(c, e, "chunk size");
        }
    }
    return CODEC_MORE;
}

static int feed_chunk_end(struct codec *c, struct str *data, struct err *e)
{
    while (data->n && c->state == CODEC_IN_CHUNK_END) {
        char ch = *data->p++;
        data->n--;
        if (ch == '\n')
            c->state = CODEC_IN_SIZE_LINE;
        else if (ch != '\r' || c->matched++)
            return bad(c, e, "chunk longer than its size");
    }
    return CODEC_MORE;
}

/* Trailer fields are read and dropped; an empty line ends them. */
static int feed_trailer(struct codec *c, struct str *data, struct err *e)
{
    while (data->n) {
        char ch = *data->p++;
        data->n--;
        if (++c->line > MAX_TRAILER)
            return bad(c, e, "trailer");
        if (ch == '\n') {
            if (!c->digits) {
                c->state = CODEC_FINISHED;
                return CODEC_DONE;
            }
            c->digits = false;
        } else if (ch != '\r') {
            c->digits = true;
        }
    }
    return CODEC_MORE;
}

static int feed_counted(struct codec *c, struct str *data, struct str *piece)
{
    size_t n = c->left < data->n ? (size_t)c->left : data->n;
    *piece = (struct str){data->p, n};
    data->p += n;
    data->n -= n;
    c->left -= n;
    if (!c->left && c->state == CODEC_IN_CHUNK)
        c->state = CODEC_IN_CHUNK_END;
    return CODEC_DATA;
}

int codec_feed(struct codec *c, struct str *data, struct str *piece, struct err *e)
{
    for (;;) {
        int rc = CODEC_MORE;
        if (c->state == CODEC_FINISHED)
            return CODEC_DONE;
        if (c->state == CODEC_FAILED)
            return bad(c, e, "it was malformed before");
        if (c->state == CODEC_IN_LENGTH && !c->left) {
            c->state = CODEC_FINISHED;
            return CODEC_DONE;
        }
        if (!data->n)
            return CODEC_MORE;
        switch (c->state) {
        case CODEC_IN_HEAD: rc = feed_head(c, data, e); break;
        case CODEC_IN_LENGTH:
        case CODEC_IN_CHUNK: return feed_counted(c, data, piece);
        case CODEC_IN_SIZE_LINE: rc = feed_size_line(c, data, e); break;
        case CODEC_IN_CHUNK_END: rc = feed_chunk_end(c, data, e); break;
        case CODEC_IN_TRAILER: rc = feed_trailer(c, data, e); break;
        case CODEC_UNTIL_CLOSE:
            *piece = *data;
            *data = (struct str){data->p + data->n, 0};
            return CODEC_DATA;
        case CODEC_FINISHED:
        case CODEC_FAILED: break;
        }
        if (rc != CODEC_MORE)
            return rc;
    }
}

int codec_eof(struct codec *c)
{
    if (c->state != CODEC_UNTIL_CLOSE && c->state != CODEC_FINISHED)
        return -EPIPE;
    c->state = CODEC_FINISHED;
    return CODEC_DONE;
}

static char *put(char *at, const char *text, size_t n)
{
    if (n)
        memcpy(at, text, n);
    return at + n;
}

#define PUT(at, literal) put(at, literal, sizeof(literal) - 1)

/* By hand: this runs once a request, where formatted printing was a tenth of the cost. */
int codec_write_head(struct buf *out, const char *method, const char *path, const char *host,
                     const char *bearer, const char *lines, const char *content_type,
                     size_t content_length)
{
    size_t nm = strlen(method), np = strlen(path), nh = strlen(host);
    size_t nb = bearer ? strlen(bearer) : 0, nl = lines ? strlen(lines) : 0;
    size_t nt = content_type ? strlen(content_type) : 0;
    int rc = buf_reserve(out, nm + np + nh + nb + nl + nt + 160);
    if (rc)
        return rc;
    char *at = out->data + out->n;
    at = PUT(put(PUT(put(at, method, nm), " "), path, np), " HTTP/1.1\r\nHost: ");
    at = PUT(put(at, host, nh), "\r\n");
    if (bearer)
        at = PUT(put(PUT(at, "Authorization: Bearer "), bearer, nb), "\r\n");
    at = put(at, lines, nl);
    if (content_type) {
        char digits[24];
        size_t i = sizeof digits;
        do
            digits[--i] = (char)('0' + content_length % 10);
        while (content_length /= 10);
        at = PUT(put(PUT(at, "Content-Type: "), content_type, nt), "\r\nContent-Length: ");
        at = PUT(put(at, digits + i, sizeof digits - i), "\r\n");
    }
    at = PUT(at, "\r\n");
    *at = 0;
    out->n = (size_t)(at - out->data);
    return 0;
}
