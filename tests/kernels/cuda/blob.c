/* Device code for tests, in place of the build's: the stand-in (libcuda.cc) takes kernels by name
 * and looks at no code, so tests run also where there is no CUDA toolchain. */
#include "kernels/cuda/blob.h"

const struct blob blobs[] = {{"emulated"}};
const uint32_t blob_count = 1;
