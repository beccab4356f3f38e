// Python module sprout.kernels._native: binds every op's native.cpp.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) {
    m.doc() = "Native CPU kernels";
}
