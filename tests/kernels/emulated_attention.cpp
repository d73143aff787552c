// The library's attention alone, compiled with tiles of plain C++ for test_native_attention.py: the pool that it runs in, as matrix_calls.cpp has it.
#include "native.h"

extern "C" {

void* pm_pool_new(int threads) { return new pagemill::Pool(threads); }
void pm_pool_free(void* pool) { delete static_cast<pagemill::Pool*>(pool); }
}
