#include <dlfcn.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

constexpr char kToolkit[] = "/usr/local/cuda/lib64/";  // where the linker often does not look

// Left loaded: unloading CUDA's libraries is not always safe, and the process ends soon.
void* Load(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  return library != nullptr ? library : dlopen((kToolkit + name).c_str(), RTLD_LAZY | RTLD_LOCAL);
}

// By a function that returns the version: `size_t cudnnGetVersion()`.
std::optional<int64_t> ReturnedVersion(const std::string& library, const char* function) {
  void* loaded = Load(library);
  if (loaded == nullptr) return std::nullopt;
  const auto get = reinterpret_cast<size_t (*)()>(dlsym(loaded, function));
  if (get == nullptr) return std::nullopt;
  return static_cast<int64_t>(get());
}

// By one that stores it: `ncclResult_t ncclGetVersion(int*)`.
std::optional<int64_t> StoredVersion(const std::string& library, const char* function) {
  void* loaded = Load(library);
  if (loaded == nullptr) return std::nullopt;
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(loaded, function));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return std::nullopt;
  return version;
}

Finding Library(const std::string& name, const std::string& file, bool needed,
                const std::optional<std::string>& version) {
  if (version) return Ok(name, absl::StrCat(*version, " (", file, ")"));
  if (!needed) return Ok(name, "not here; only ranks on GPUs need it");
  return Warn(name, absl::StrCat(file, " is not found by the dynamic linker"),
              "scripts/bootstrap --cuda installs it; or add its folder to LD_LIBRARY_PATH");
}

}  // namespace

std::string LibraryVersion(int64_t number) {
  return absl::StrFormat("%d.%d.%d", number / 10'000, number / 100 % 100, number % 100);
}

std::string CudaVersion(int64_t number) {
  return absl::StrFormat("%d.%d", number / 1'000, number % 1'000 / 10);
}

Findings CheckLibraries(int cuda_driver, bool cuda_trainer) {
  const bool gpus = cuda_driver > 0;
  Findings findings;
  const auto add = [&](const std::string& name, const std::string& file,
                       const std::optional<int64_t>& version, std::string (*text)(int64_t)) {
    findings.push_back(
        Library(name, file, gpus, version ? std::optional(text(*version)) : std::nullopt));
  };
  const auto runtime = StoredVersion("libcudart.so.13", "cudaRuntimeGetVersion");
  add("CUDA runtime", "libcudart.so.13", runtime, CudaVersion);
  if (runtime && gpus && *runtime / 1'000 > cuda_driver / 1'000) {
    findings.push_back(Fail("CUDA runtime",
                            absl::StrCat("the driver runs CUDA up to ", CudaVersion(cuda_driver),
                                         ", the runtime is ", CudaVersion(*runtime)),
                            "install a newer driver"));
  }
  add("cuBLASLt", "libcublasLt.so.13", ReturnedVersion("libcublasLt.so.13", "cublasLtGetVersion"),
      LibraryVersion);
  add("cuDNN", "libcudnn.so.9", ReturnedVersion("libcudnn.so.9", "cudnnGetVersion"),
      LibraryVersion);
  add("NCCL", "libnccl.so.2", StoredVersion("libnccl.so.2", "ncclGetVersion"), LibraryVersion);
  if (gpus && !cuda_trainer) {
    findings.push_back(Warn("trainer",
                            "milepost-trainer-cuda is not beside milepost-worker: the "
                            "GPUs are not offered",
                            "build Milepost with CUDA (docs/internals/cuda.md)"));
  }
  return findings;
}

}  // namespace milepost::worker
