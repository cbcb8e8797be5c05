#include "common/spec/paths.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/container.h"

namespace milepost {
namespace {

void VisitContainer(v1::ContainerSpec* container, PathVisitor visit) {
  if (std::string path(PathOfImage(container->image())); !path.empty()) {
    const std::string kind = container->image().substr(0, container->image().size() - path.size());
    visit("script.container.image", PathUse::kRead, &path);
    container->set_image(absl::StrCat(kind, path));
  }
  // "/data:/mnt/data:ro": the path of the host comes first.
  for (std::string& mount : *container->mutable_mounts()) {
    const size_t end = std::min(mount.find(':'), mount.size());
    std::string path = mount.substr(0, end);
    const PathUse use = absl::EndsWith(mount, ":ro") ? PathUse::kRead : PathUse::kWrite;
    visit("script.container.mounts", use, &path);
    mount.replace(0, end, path);
  }
}

}  // namespace

void ForEachPath(v1::JobSpec* spec, PathVisitor visit) {
  const auto read = [&](absl::string_view field, std::string* path) {
    visit(field, PathUse::kRead, path);
  };
  const auto write = [&](absl::string_view field, std::string* path) {
    visit(field, PathUse::kWrite, path);
  };
  if (spec->has_model()) read("model.hugging_face", spec->mutable_model()->mutable_hugging_face());
  if (spec->has_data()) {
    v1::DataSpec* data = spec->mutable_data();
    read("data.train", data->mutable_train());
    read("data.validation", data->mutable_validation());
    for (v1::TokenSource& source : *data->mutable_mixture()) {
      read("data.mixture.path", source.mutable_path());
      read("data.mixture.loss_mask", source.mutable_loss_mask());
    }
    if (data->has_loss_mask()) {
      read("data.loss_mask.train", data->mutable_loss_mask()->mutable_train());
      read("data.loss_mask.validation", data->mutable_loss_mask()->mutable_validation());
    }
    for (v1::ValidationSetSpec& set : *data->mutable_validation_sets()) {
      read("data.validation_sets.path", set.mutable_path());
      read("data.validation_sets.loss_mask", set.mutable_loss_mask());
      for (v1::SetLabels& labels : *set.mutable_labels()) {
        read("data.validation_sets.labels.path", labels.mutable_path());
      }
    }
    for (v1::LabelSource& labels : *data->mutable_labels()) {
      read("data.labels.train", labels.mutable_train());
      read("data.labels.validation", labels.mutable_validation());
    }
  }
  if (spec->has_train()) read("train.init_from", spec->mutable_train()->mutable_init_from());
  if (spec->train().has_offload()) {
    write("train.offload.path", spec->mutable_train()->mutable_offload()->mutable_path());
  }
  if (spec->has_script()) {
    // A container has it to write.
    spec->script().has_container()
        ? write("script.folder", spec->mutable_script()->mutable_folder())
        : read("script.folder", spec->mutable_script()->mutable_folder());
    read("script.wheels", spec->mutable_script()->mutable_wheels());
    read("script.files", spec->mutable_script()->mutable_files());
    if (spec->script().has_container()) {
      VisitContainer(spec->mutable_script()->mutable_container(), visit);
    }
  }
  if (spec->has_report()) {
    write("report.tensorboard", spec->mutable_report()->mutable_tensorboard());
  }
}

}  // namespace milepost
