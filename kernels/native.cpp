// Python module sprout.kernels._native: binds every op's native.cpp.
#include <nanobind/nanobind.h>

void bind_decode_attention(nanobind::module_&);

NB_MODULE(_native, m) {
    m.doc() = "Native CPU kernels";
    bind_decode_attention(m);
}
