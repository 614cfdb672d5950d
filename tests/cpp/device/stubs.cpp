// Kernels of the lagging device that compute nothing, and a scan that reads nothing: only the work of the host remains.
#include <array>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "device/lagging_device.h"
#include "device/kernel_scan.h"
#include "device/scanner.h"

struct TorchnanScanner {
  torchnan::cuda::HostWords words{torchnan::cuda::kNoAlarm, 0, {}};
};

namespace torchnan::lagging {
namespace {

// One block for all.
class Nowhere final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes <= block_.size(), "stubs are for small tensors");
    return {block_.data(), current_device()};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  alignas(64) std::array<char, 1 << 20> block_{};
};
Nowhere& nowhere = *new Nowhere;

at::Tensor like(const at::Tensor& x) {
  return at::detail::empty_strided_generic(x.sizes(), x.strides(), &nowhere,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), x.scalar_type());
}
at::Tensor unary(const at::Tensor& x) { return like(x); }
at::Tensor binary(const at::Tensor& x, const at::Tensor&) { return like(x); }
at::Tensor add(const at::Tensor& x, const at::Tensor&, const at::Scalar&) { return like(x); }
at::Tensor& binary_in_place(at::Tensor& x, const at::Tensor&) { return x; }
void add_lists_in_place(at::TensorList, at::TensorList, const at::Scalar&) {}
std::vector<at::Tensor> square_roots(at::TensorList xs) {
  std::vector<at::Tensor> made;
  made.reserve(xs.size());
  for (const at::Tensor& x : xs) made.push_back(like(x));
  return made;
}

const char* error_text(int) { return ""; }
int make(int, TorchnanScanner** made) {
  *made = new TorchnanScanner;
  return 0;
}
int free_scanner(TorchnanScanner* scanner) {
  delete scanner;
  return 0;
}
const volatile cuda::HostWords* words(const TorchnanScanner* scanner) { return &scanner->words; }
int scan(TorchnanScanner*, const cuda::Table*, uint64_t, void*) { return 0; }
int scan_strided(TorchnanScanner*, const cuda::StridedEntry*, uint64_t, void*) { return 0; }
int reserve(TorchnanScanner*, uint64_t, void** reserved) {
  *reserved = nullptr;
  return 0;
}
int copy_if_alarmed(TorchnanScanner*, const cuda::CopyTable*, uint32_t, void*) { return 0; }
int copy_if_nonfinite(const cuda::CopyTable*, const cuda::Numbers*, void*) { return 0; }
int record_mark(TorchnanScanner* scanner, void*, void** mark) {
  *mark = scanner;
  return 0;
}
int follow_mark(void*, void*) { return 0; }
void* own_stream(const TorchnanScanner*) { return nullptr; }
int clear(TorchnanScanner*, uint32_t, uint32_t, void*) { return 0; }
int reset_alarm(TorchnanScanner* scanner, uint64_t) {
  ++scanner->words.resets;
  return 0;
}
int read(TorchnanScanner*, uint32_t, uint32_t, cuda::Slot*) { return 0; }
int is_capturing(void*, int* capturing) {
  *capturing = 0;
  return 0;
}
constexpr ScanFunctions kFunctions = {
    &error_text,        &make,        &free_scanner, &words, &scan,       &scan_strided, &reserve, &copy_if_alarmed,
    &copy_if_nonfinite, &record_mark, &follow_mark,  &clear, &own_stream, &reset_alarm,  &read,    &is_capturing};

}  // namespace

void use_stubs() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.impl("add.Tensor", &add);
  library.impl("mm", &binary);
  library.impl("tanh", &unary);
  library.impl("atan", &unary);
  library.impl("mul_.Tensor", &binary_in_place);
  library.impl("_foreach_add_.List", &add_lists_in_place);
  library.impl("_foreach_sqrt", &square_roots);
  Scanner::set_functions(kType, &kFunctions);
}

}  // namespace torchnan::lagging
