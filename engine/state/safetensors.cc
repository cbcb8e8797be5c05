#include "engine/state/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "engine/state/half.h"
#include "engine/state/safetensors_index.h"

namespace milepost::state {
namespace {

template <float (*kWiden)(uint16_t)>
void Widen(const char* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;  // the file's data may lie at any offset
    std::memcpy(&bits, source + 2 * i, sizeof(bits));
    out[i] = kWiden(bits);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  MP_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegularFile(path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (info.st_size == 0) return absl::DataLossError(absl::StrCat(path, ": empty file"));
  const auto size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->path_ = path;
  file->mapping_ = mapping;
  file->mapping_bytes_ = size;
  const char* bytes = static_cast<const char*>(mapping);
  auto header = ParseSafetensorsHeader({bytes, size}, info.st_size);
  if (!header.ok()) return Annotate(header.status(), path);
  file->header_ = *std::move(header);
  file->data_ = bytes + file->header_.data_offset;
  for (const SafetensorsTensor& tensor : file->header_.tensors) {
    file->by_name_.emplace(tensor.name, &tensor);
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

const SafetensorsTensor* SafetensorsFile::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

absl::Status SafetensorsFile::ReadF32(const SafetensorsTensor& tensor, int64_t begin, int64_t end,
                                      float* out) const {
  MP_CHECK(begin >= 0 && begin <= end && end <= tensor.elements) << tensor.name;
  const int64_t count = end - begin;
  if (count == 0) return absl::OkStatus();  // of a dtype that need not be one of those
  const char* source = data_ + tensor.begin + begin * SafetensorsElementBytes(tensor.dtype);
  if (tensor.dtype == "F32") {
    std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
  } else if (tensor.dtype == "BF16") {
    Widen<Bf16ToF32>(source, count, out);
  } else if (tensor.dtype == "F16") {
    Widen<F16ToF32>(source, count, out);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", tensor.name, " is ",
                                                   tensor.dtype,
                                                   "; parameters are read from F32, F16 or BF16"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const SafetensorsFolder>> SafetensorsFolder::Open(
    const std::string& folder) {
  auto result = std::make_unique<SafetensorsFolder>();
  result->path_ = folder;
  const std::string index = absl::StrCat(folder, "/", kSafetensorsIndex);
  if (access(index.c_str(), F_OK) != 0) {
    const std::string path = absl::StrCat(folder, "/", kSafetensorsFile);
    auto file = SafetensorsFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(
          absl::StrCat(folder, ": holds neither ", kSafetensorsFile, " nor ", kSafetensorsIndex));
    }
    MP_RETURN_IF_ERROR(file.status());
    for (const SafetensorsTensor& tensor : (*file)->header().tensors) {
      result->tensors_[tensor.name] = {*file, {*file, &tensor}};
    }
    return result;
  }
  MP_ASSIGN_OR_RETURN(const auto weight_map, ReadSafetensorsIndex(index));
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, file_name] : weight_map) {
    auto& file = files[file_name];
    if (file == nullptr) {
      MP_ASSIGN_OR_RETURN(file, SafetensorsFile::Open(absl::StrCat(folder, "/", file_name)));
    }
    const SafetensorsTensor* tensor = file->Find(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(index, ": it says that ", file_name, " holds ",
                                                     name, ", which it does not"));
    }
    result->tensors_[name] = {file, {file, tensor}};
  }
  return result;
}

SafetensorsFolder::Place SafetensorsFolder::Place::Rows(int64_t begin, int64_t rows) const {
  MP_CHECK(!tensor->shape.empty()) << tensor->name;
  const int64_t all = tensor->shape[0];
  MP_CHECK(begin >= 0 && rows > 0 && begin + rows <= all) << tensor->name;
  SafetensorsTensor part = *tensor;
  part.shape[0] = rows;
  part.elements = tensor->elements / all * rows;
  const int64_t row_bytes = (tensor->end - tensor->begin) / all;
  part.begin = tensor->begin + begin * row_bytes;
  part.end = part.begin + rows * row_bytes;
  return {file, std::make_shared<const SafetensorsTensor>(std::move(part))};
}

const SafetensorsFolder::Place* SafetensorsFolder::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace milepost::state
