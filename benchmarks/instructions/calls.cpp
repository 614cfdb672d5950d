// Calls operators in every mode, a thousand times each, and dumps callgrind's counters after each pair of both. With
// the path of tests/cpp/lagging.so as an argument, on its device, whose kernels compute nothing then.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torchnan/torchnan.h>
#include <valgrind/callgrind.h>

namespace {

constexpr int kCalls = 1000;
// Its fallback does nothing but redispatch: what one more dispatch costs, boxed.
constexpr c10::DispatchKey kFloorKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_nested_calls(kFloorKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFloorKey), stack);
}

// The same without boxing.
at::Tensor redispatch_add(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard no_nested_calls(kFloorKey);
  return at::_ops::add_Tensor::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFloorKey), a, b,
                                          alpha);
}

struct Case {
  std::string name;
  std::function<void()> call;
};

using Cases = std::vector<Case> (*)();

std::vector<Case> cases_on_host() {
  const at::Tensor small = at::rand({4, 4});
  const at::Tensor large = at::rand({128, 128});
  const at::Tensor target = at::rand({4, 4});
  const at::Tensor large_target = at::rand({128, 128});
  std::vector<at::Tensor> list;
  for (int i = 0; i < 10; ++i) list.push_back(at::rand({4, 4}));
  return {
      {"add, 16 elements", [=] { at::add(small, small); }},
      {"add, 16384 elements", [=] { at::add(large, large); }},
      {"mm, 4x4", [=] { at::mm(small, small); }},
      {"mul_, 16 elements", [=] { target.mul_(0.5); }},
      {"mul_, 16384 elements", [=] { large_target.mul_(0.5); }},
      {"log, 16 elements", [=] { at::log(small); }},
      {"expm1 (boxed), 16 elements", [=] { at::expm1(small); }},
      {"_foreach_mul_ (boxed), 10 x 16 elements", [=] { at::_foreach_mul_(list, 0.5); }},
      {"view", [=] { small.view({16}); }},
      {"item", [=] { small[0][0].item<float>(); }},
  };
}

// Those of `python -m benchmarks.gpu.host_time`.
std::vector<Case> cases_on_device() {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  const at::Tensor small = at::zeros({8}).to(device);
  const at::Tensor x = at::zeros({64, 256}).to(device);
  const at::Tensor w = at::zeros({256, 256}).to(device);
  std::vector<at::Tensor> xs;
  std::vector<at::Tensor> ys;
  for (int i = 0; i < 100; ++i) {
    xs.push_back(at::zeros({64}).to(device));
    ys.push_back(at::zeros({64}).to(device));
  }
  return {
      {"add, 8 elements", [=] { at::add(small, small); }},
      {"tanh, 64x256, proved", [=] { at::tanh(x); }},
      {"mm, 64x256x256, proved", [=] { at::mm(x, w); }},
      {"mul_, 8 elements", [=] { small.mul_(small); }},
      {"atan (boxed), 64x256", [=] { at::atan(x); }},
      {"_foreach_add_ (boxed), 100", [=] { at::_foreach_add_(xs, ys); }},
      {"_foreach_sqrt (boxed), 100", [=] { at::_foreach_sqrt(xs); }},
  };
}

// Lets the device's kernels compute nothing.
void load_device(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  reinterpret_cast<void (*)(int)>(dlsym(library, "lagging_plug_into_torchnan"))(/*by_kernel=*/1);
  reinterpret_cast<void (*)()>(dlsym(library, "lagging_use_stubs"))();
}

void measure(const Cases cases, const std::string& mode) {
  for (const Case& one : cases()) {
    for (int i = 0; i < 10; ++i) one.call();
    CALLGRIND_ZERO_STATS;
    for (int i = 0; i < kCalls; ++i) one.call();
    const std::string title = mode + "/" + one.name;
    CALLGRIND_DUMP_STATS_AT(title.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc > 1) load_device(argv[1]);
  const c10::InferenceMode inference;  // autograd's own instructions are not of interest
  torch::Library fallbacks(torch::Library::IMPL, "_", kFloorKey, __FILE__, __LINE__);
  fallbacks.fallback(torch::CppFunction::makeFromBoxedFunction<&redispatch>());
  torch::Library kernels(torch::Library::IMPL, "aten", kFloorKey, __FILE__, __LINE__);
  kernels.impl("add.Tensor", TORCH_FN(redispatch_add));

  const Cases cases = argc > 1 ? &cases_on_device : &cases_on_host;
  CALLGRIND_START_INSTRUMENTATION;  // not before: loading PyTorch takes minutes of it
  measure(cases, "off");
  {
    const c10::impl::IncludeDispatchKeyGuard included(kFloorKey);
    measure(cases, "redispatch");
  }
  {
    torchnan::Detector detector;
    for (const int64_t step : {1, 2}) detector.mark_step(step);  // in the first one everything is read
    measure(cases, "detect");
  }
  {
    torchnan::Options options;
    options.rescan_every = 1;
    torchnan::Detector detector(std::move(options));
    measure(cases, "exact");
  }
}
