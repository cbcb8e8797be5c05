// Images in WebDataset shards (image_set.h), memory-mapped.
#ifndef MILEPOST_ENGINE_DATA_IMAGES_SHARD_SET_H_
#define MILEPOST_ENGINE_DATA_IMAGES_SHARD_SET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/images/image_set.h"
#include "engine/data/images/shard_index.h"

namespace milepost::data {

bool IsShardName(absl::string_view name);  // *.tar

// Scans the headers of every shard, one shard after the other. `heads` are those of
// ImageSetOptions. Errors are OpenImageSet's.
absl::StatusOr<std::shared_ptr<const ImageSet>> OpenShardSet(const std::vector<std::string>& paths,
                                                             const std::vector<std::string>& heads);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_IMAGES_SHARD_SET_H_
