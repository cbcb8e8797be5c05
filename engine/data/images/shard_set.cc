#include "engine/data/images/shard_set.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/data/mapped_file.h"

namespace milepost::data {
namespace {

struct Shard {
  std::string path;
  MappedFile file;
  std::vector<ShardEntry> entries;
};

class ShardSet : public ImageSet {
 public:
  explicit ShardSet(const std::vector<std::string>& heads)
      : heads_(heads), head_labels_(heads.size()) {}

  absl::Status Add(const std::string& path) {
    MP_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    const absl::string_view bytes = file.bytes();
    void* const begin = const_cast<char*>(bytes.data());
    // A scan touches a page here and there; reading ahead of each would read most of the shard.
    madvise(begin, bytes.size(), MADV_RANDOM);
    absl::StatusOr<std::vector<ShardEntry>> entries = IndexShard(bytes, heads_, &head_labels_);
    if (!entries.ok()) return Annotate(entries.status(), path);
    madvise(begin, bytes.size(), MADV_NORMAL);
    entries->shrink_to_fit();
    ends_.push_back(size() + static_cast<int64_t>(entries->size()));
    shards_.push_back({path, std::move(file), std::move(*entries)});
    return absl::OkStatus();
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  int32_t LabelOf(int64_t image) const override { return Find(image).second->label; }
  absl::Span<const int32_t> HeadLabels(size_t head) const override { return head_labels_[head]; }
  std::string NameOf(int64_t image) const override {
    const auto [shard, entry] = Find(image);
    return absl::StrCat(shard->path, ", the image at byte ", entry->offset);
  }
  absl::Status Read(int64_t image, int64_t limit, std::string* storage,
                    StoredImage* out) const override {
    const auto [shard, entry] = Find(image);
    *out = {.bytes = shard->file.bytes().substr(static_cast<size_t>(entry->offset), entry->size)};
    if (out->bytes.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(NameOf(image), ": empty"));
    }
    return absl::OkStatus();
  }

 private:
  std::pair<const Shard*, const ShardEntry*> Find(int64_t image) const {
    const auto at =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), image) - ends_.begin());
    const Shard& shard = shards_[at];
    const int64_t begin = ends_[at] - static_cast<int64_t>(shard.entries.size());
    return {&shard, &shard.entries[static_cast<size_t>(image - begin)]};
  }

  const std::vector<std::string> heads_;
  std::vector<std::vector<int32_t>> head_labels_;
  std::vector<Shard> shards_;
  std::vector<int64_t> ends_;  // how many images there are up to each shard's end
};

}  // namespace

bool IsShardName(absl::string_view name) { return absl::EndsWith(name, ".tar"); }

absl::StatusOr<std::shared_ptr<const ImageSet>> OpenShardSet(
    const std::vector<std::string>& paths, const std::vector<std::string>& heads) {
  auto set = std::make_shared<ShardSet>(heads);
  for (const std::string& path : paths) MP_RETURN_IF_ERROR(set->Add(path));
  return set;
}

}  // namespace milepost::data
