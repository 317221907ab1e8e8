/* digest.h: is the model file the one that was asked for? Reads the whole file once (on a
 * launcher's node, once a node: by --fill). Source: FIPS 180-4 (SHA-256). */
#pragma once
#include "lib/base/err.h"

/* `hex`: 64 lower-case hex digits, or "" (nothing is asked, 0). EINVAL when the file's digest is
 * another. A folder's digest is that of the lines that sha256sum prints for its files:
 *     cd FOLDER && LC_ALL=C sha256sum * | sha256sum
 * (regular files whose names don't begin with a dot, in the order of their bytes). */
int digest_check(const char *path, const char *hex, struct err *e) MUST_CHECK;
