// Python module sprout.kernels._native_ISA: binds every op's native.cpp.
#include <nanobind/nanobind.h>

void bind_adamw(nanobind::module_&);
void bind_decode_attention(nanobind::module_&);
void bind_rms_norm(nanobind::module_&);
void bind_rotary(nanobind::module_&);
void bind_sample(nanobind::module_&);
void bind_selected_logprob(nanobind::module_&);
void bind_swiglu(nanobind::module_&);
void bind_tree_attention(nanobind::module_&);

NB_MODULE(SPROUT_MODULE, m) {
    m.doc() = "Native CPU kernels";
    bind_adamw(m);
    bind_decode_attention(m);
    bind_rms_norm(m);
    bind_rotary(m);
    bind_sample(m);
    bind_selected_logprob(m);
    bind_swiglu(m);
    bind_tree_attention(m);
}
