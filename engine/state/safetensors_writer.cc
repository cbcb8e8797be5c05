#include "engine/state/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/state/safetensors.h"
#include "engine/state/safetensors_index.h"

namespace milepost::state {
namespace {

absl::Status WriteAt(int fd, const std::string& path, int64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

// Where the file system cannot reserve, the size alone is set and a full disk shows up later.
absl::Status Reserve(int fd, const std::string& path, int64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) result = ftruncate(fd, bytes);
  if (result == 0) return absl::OkStatus();
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot reserve ", bytes, " bytes for ", path));
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || fsync(fd.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", folder));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> CreateNew(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  return fd;
}

}  // namespace

std::vector<std::vector<size_t>> ShardSafetensors(absl::Span<const SafetensorsTensor> tensors,
                                                  int64_t max_bytes) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> current;
  int64_t current_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].end - tensors[i].begin;
    if (bytes > max_bytes) {
      shards.push_back({i});
      continue;
    }
    if (current_bytes + bytes > max_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& folder, std::vector<SafetensorsTensor> tensors, int64_t max_shard_bytes,
    absl::string_view only_file) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  writer->folder_ = folder;
  {  // All at once, for what only all tensors together can have wrong: doubled names, the sum.
    std::vector<SafetensorsTensor> all = tensors;
    MP_RETURN_IF_ERROR(LayOutSafetensors(&all));
    if (!all.empty()) writer->total_bytes_ = all.back().end;
    std::map<absl::string_view, int64_t> bytes;
    for (const SafetensorsTensor& tensor : all) bytes[tensor.name] = tensor.end - tensor.begin;
    for (SafetensorsTensor& tensor : tensors) {
      tensor.begin = 0;
      tensor.end = bytes[tensor.name];
      writer->tensor_names_.push_back(tensor.name);
    }
  }
  writer->places_.resize(tensors.size());
  const auto shards = ShardSafetensors(tensors, max_shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string(only_file)
                                                : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                  i + 1, shards.size());
    std::vector<SafetensorsTensor> members;
    for (const size_t index : shards[i]) members.push_back(tensors[index]);
    MP_RETURN_IF_ERROR(writer->CreateFile(name, std::move(members), shards[i]));
  }
  return writer;
}

absl::Status SafetensorsWriter::CreateFile(const std::string& name,
                                           std::vector<SafetensorsTensor> tensors,
                                           absl::Span<const size_t> indices) {
  MP_RETURN_IF_ERROR(LayOutSafetensors(&tensors));
  MP_ASSIGN_OR_RETURN(const std::string header, FormatSafetensorsHeader(tensors));
  const auto data = static_cast<int64_t>(header.size());
  std::map<absl::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  for (const size_t index : indices) {
    const SafetensorsTensor& tensor = *by_name[tensor_names_[index]];
    places_[index] = {files_.size(), data + tensor.begin, data + tensor.end};
  }
  const std::string path = absl::StrCat(folder_, "/", name);
  MP_ASSIGN_OR_RETURN(UniqueFd fd, CreateNew(path));
  MP_RETURN_IF_ERROR(Reserve(fd.get(), path, data + (tensors.empty() ? 0 : tensors.back().end)));
  MP_RETURN_IF_ERROR(WriteAt(fd.get(), path, 0, header));
  names_.push_back(name);
  files_.push_back(std::move(fd));
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Write(size_t tensor, int64_t offset, absl::string_view bytes) {
  MP_CHECK(tensor < places_.size()) << tensor;
  const Place& place = places_[tensor];
  const auto count = static_cast<int64_t>(bytes.size());
  if (offset < 0 || offset > place.end - place.begin || count > place.end - place.begin - offset) {
    return absl::OutOfRangeError(absl::StrCat("bytes [", offset, ", ", offset + count,
                                              ") are outside tensor ", tensor_names_[tensor]));
  }
  return WriteAt(files_[place.file].get(), absl::StrCat(folder_, "/", names_[place.file]),
                 place.begin + offset, bytes);
}

absl::Status SafetensorsWriter::Finish() {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (fsync(files_[i].get()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", folder_, "/", names_[i]));
    }
  }
  if (files_.size() > 1) {
    std::map<std::string, std::string> weight_map;
    for (size_t i = 0; i < places_.size(); ++i) {
      weight_map[tensor_names_[i]] = names_[places_[i].file];
    }
    const std::string path = absl::StrCat(folder_, "/", kSafetensorsIndex);
    MP_ASSIGN_OR_RETURN(const UniqueFd fd, CreateNew(path));
    MP_RETURN_IF_ERROR(
        WriteAt(fd.get(), path, 0, FormatSafetensorsIndex(weight_map, total_bytes_)));
    if (fsync(fd.get()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path));
  }
  files_.clear();
  return SyncFolder(folder_);
}

}  // namespace milepost::state
