#include "device/kernel_scan.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

#include "base/format.h"

namespace torchnan {
namespace {

constexpr const char* kName = "libtorchnan_cuda.so";

std::filesystem::path cuda_library_path() {
  Dl_info core{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda), &core) == 0) return kName;
  const std::filesystem::path folder = std::filesystem::path(core.dli_fname).parent_path();
  const std::filesystem::path shared = folder.parent_path() / kName;  // by the cores of a Python package
  return std::filesystem::exists(shared) ? shared : folder / kName;
}

void* open_library() {
  const std::filesystem::path path = cuda_library_path();
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(format_text(
        "torchnan was built without CUDA: {} is not there. Build it again where there is a CUDA Toolkit, 12 "
        "or newer, or for ROCm with -DTORCHNAN_CUDA=HIP, to have tensors on GPUs checked",
        path.string()));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(format_text("cannot load {}: {}", path.string(), dlerror()));
  return library;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw std::runtime_error(format_text("{} has no {}: it belongs to another version", kName, name));
}

ScanFunctions functions_of(void* library) {
  decltype(&torchnan_cuda_abi) abi = nullptr;
  find(library, "torchnan_cuda_abi", abi);
  if (abi() != TORCHNAN_CUDA_ABI) {
    throw std::runtime_error(
        format_text("{} has version {} of its functions, and this torchnan wants {}", kName, abi(), TORCHNAN_CUDA_ABI));
  }
  ScanFunctions found{};
  find(library, "torchnan_cuda_error_text", found.error_text);
  find(library, "torchnan_scanner_make", found.make);
  find(library, "torchnan_scanner_free", found.free);
  find(library, "torchnan_scanner_words", found.words);
  find(library, "torchnan_scan", found.scan);
  find(library, "torchnan_scan_strided", found.scan_strided);
  find(library, "torchnan_reserve", found.reserve);
  find(library, "torchnan_copy_if_alarmed", found.copy_if_alarmed);
  find(library, "torchnan_copy_if_nonfinite", found.copy_if_nonfinite);
  find(library, "torchnan_record_mark", found.record_mark);
  find(library, "torchnan_follow_mark", found.follow_mark);
  find(library, "torchnan_scanner_clear", found.clear);
  find(library, "torchnan_scanner_stream", found.stream);
  find(library, "torchnan_scanner_reset_alarm", found.reset_alarm);
  find(library, "torchnan_scanner_read", found.read);
  find(library, "torchnan_is_capturing", found.is_capturing);
  return found;
}

}  // namespace

const ScanFunctions& load_cuda() { return *new ScanFunctions(functions_of(open_library())); }

}  // namespace torchnan
