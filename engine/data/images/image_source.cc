#include "engine/data/images/image_source.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

// More than this in a row are not damage here and there.
constexpr int kMaxReplacements = 100;
// Enough for nearly every header; the whole file is read where it is not.
constexpr int64_t kHeaderBytes = 64 << 10;
constexpr int64_t kPrintBytes = 16 << 10;  // of an image, looked at for a fingerprint

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What the image's own bytes are to blame for.
bool IsDamage(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ImageSource>> ImageSource::Open(
    const std::string& path, const ImageSourceOptions& options) {
  ImageSetOptions wanted = {.classes = options.classes, .class_names = options.class_names};
  for (const LabelOptions& labels : options.labels) {
    if (labels.path.empty()) wanted.heads.push_back(labels.head);
  }
  MP_ASSIGN_OR_RETURN(auto set, OpenImageSet(path, wanted));
  std::shared_ptr<ImageSource> source(new ImageSource(std::move(set), options));
  MP_ASSIGN_OR_RETURN(source->labels_, ReadHeadLabels(path, source->set(), options.labels));
  if (source->patches()) MP_RETURN_IF_ERROR(source->IndexTiles());
  return source;
}

ImageSource::ImageSource(std::shared_ptr<const ImageSet> set, const ImageSourceOptions& options)
    : set_(std::move(set)),
      options_(options),
      fields_({{.name = "images",
                .sample_bytes = options.view.image_size * options.view.image_size * 3},
               {.name = "targets", .sample_bytes = sizeof(int32_t), .targets = 1}}),
      order_(set_->size(), options.seed) {
  for (const LabelOptions& labels : options_.labels) {
    fields_.push_back({.name = labels.field, .sample_bytes = sizeof(int32_t), .targets = kVaries});
  }
}

absl::StatusOr<int64_t> ImageSource::CountTargets(size_t field, int64_t first,
                                                  int64_t count) const {
  if (fields_[field].targets != kVaries) return SampleSource::CountTargets(field, first, count);
  int64_t valid = 0;
  for (int64_t global = first; global < first + count; ++global) {
    valid += labels_[field - 2][static_cast<size_t>(PlaceOfSample(global).image)] >= 0 ? 1 : 0;
  }
  return valid;
}

absl::Status ImageSource::IndexTiles() {
  Scratch scratch(options_.limits);
  int64_t tiles = 0;
  tile_ends_.reserve(static_cast<size_t>(set_->size()));
  for (int64_t image = 0; image < set_->size(); ++image) {
    absl::StatusOr<int64_t> own = CountTiles(image, &scratch);
    if (!own.ok() && IsDamage(own.status()) && options_.skip_damaged) {
      NoteDamage(own.status());
      own = 0;
    }
    if (!own.ok()) return own.status();
    tiles += *own;
    tile_ends_.push_back(tiles);
  }
  if (tiles == 0) return absl::InvalidArgumentError("every image is damaged");
  order_ = SampleOrder(tiles, options_.seed);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ImageSource::CountTiles(int64_t image, Scratch* scratch) const {
  StoredImage stored;
  for (const int64_t limit : {kHeaderBytes, ImageSet::kWhole}) {
    MP_RETURN_IF_ERROR(set_->Read(image, limit, &scratch->storage, &stored));
    if (stored.width > 0) return TilesOf(options_.view, stored.width, stored.height);
    const auto info = scratch->renderer.ReadInfo(stored.bytes);
    if (info.ok()) return TilesOf(options_.view, info->width, info->height);
    const bool partial = static_cast<int64_t>(stored.bytes.size()) == limit;
    if (!partial) return Annotate(info.status(), set_->NameOf(image));
  }
  return absl::InvalidArgumentError(absl::StrCat(set_->NameOf(image), ": no header"));
}

int64_t ImageSource::TilesOfImage(int64_t image) const {
  if (!patches()) return 1;
  const auto at = static_cast<size_t>(image);
  return tile_ends_[at] - (at == 0 ? 0 : tile_ends_[at - 1]);
}

ImageSource::Place ImageSource::PlaceOf(int64_t sample) const {
  if (!patches()) return {sample, 0};
  const int64_t image =
      std::upper_bound(tile_ends_.begin(), tile_ends_.end(), sample) - tile_ends_.begin();
  return {image, sample - (tile_ends_[static_cast<size_t>(image)] - TilesOfImage(image))};
}

ImageSource::Place ImageSource::PlaceOfSample(int64_t global) const {
  return PlaceOf(options_.train ? order_.SampleAt(global) : global);
}

bool ImageSource::IsLabelledLike(int64_t image, int64_t other) const {
  return std::none_of(labels_.begin(), labels_.end(), [&](const std::vector<int32_t>& labels) {
    return labels[static_cast<size_t>(image)] >= 0 && labels[static_cast<size_t>(other)] < 0;
  });
}

ImageSource::Place ImageSource::NextImage(const Place& place) const {
  int64_t image = place.image;
  do {
    image = (image + 1) % set_->size();
  } while (TilesOfImage(image) == 0);
  return {image, place.tile % TilesOfImage(image)};
}

View ImageSource::ViewOf(const Place& place, int64_t global, int64_t width, int64_t height) const {
  const ViewOptions& options = options_.view;
  if (options_.train && options.random_crop && !patches()) {
    return RandomView(options, width, height, options_.seed, global);
  }
  View view =
      patches() ? TileView(options, width, height, place.tile) : CentreView(options, width, height);
  view.flip = options_.train && IsMirrored(options, options_.seed, global);
  return view;
}

absl::Status ImageSource::Show(const Place& place, int64_t global, Scratch* scratch,
                               uint8_t* pixels) const {
  StoredImage stored;
  MP_RETURN_IF_ERROR(set_->Read(place.image, ImageSet::kWhole, &scratch->storage, &stored));
  bytes_read_.fetch_add(static_cast<int64_t>(stored.bytes.size()), std::memory_order_relaxed);
  const int64_t size = options_.view.image_size;
  if (stored.width > 0) {
    scratch->renderer.RenderPixels(
        reinterpret_cast<const uint8_t*>(stored.bytes.data()), stored.width, stored.height,
        ViewOf(place, global, stored.width, stored.height), size, pixels);
    return absl::OkStatus();
  }
  const auto info = scratch->renderer.ReadInfo(stored.bytes);
  if (!info.ok()) return Annotate(info.status(), set_->NameOf(place.image));
  if (patches() && TilesOf(options_.view, info->width, info->height) != TilesOfImage(place.image)) {
    return absl::FailedPreconditionError(
        absl::StrCat(set_->NameOf(place.image), ": its size has changed since the run began"));
  }
  return Annotate(
      scratch->renderer.Render(stored.bytes, *info,
                               ViewOf(place, global, info->width, info->height), size, pixels),
      set_->NameOf(place.image));
}

absl::Status ImageSource::FetchOne(int64_t global, Scratch* scratch, uint8_t* pixels,
                                   int64_t* image) const {
  Place place = PlaceOfSample(global);
  const int64_t own = place.image;
  absl::Status status = Show(place, global, scratch, pixels);
  const bool replace = options_.skip_damaged && IsDamage(status);
  for (int i = 0; replace && IsDamage(status) && i < kMaxReplacements; ++i) {
    NoteDamage(status);
    do {
      place = NextImage(place);
    } while (!IsLabelledLike(own, place.image));
    status = Show(place, global, scratch, pixels);
  }
  MP_RETURN_IF_ERROR(status);
  if (replace) damaged_.fetch_add(1, std::memory_order_relaxed);
  *image = place.image;
  return absl::OkStatus();
}

absl::Status ImageSource::Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const {
  MP_CHECK(first >= 0 && (options_.train || first + count <= samples())) << first << " " << count;
  const int64_t start = Nanoseconds();
  std::unique_ptr<Scratch> scratch = Borrow();
  absl::Status status;
  for (int64_t i = 0; i < count && status.ok(); ++i) {
    int64_t image = 0;
    status = FetchOne(first + i, scratch.get(),
                      reinterpret_cast<uint8_t*>(into[0]) + i * fields_[0].sample_bytes, &image);
    const auto put = [&](size_t field, int32_t label) {
      std::memcpy(into[field] + i * static_cast<int64_t>(sizeof label), &label, sizeof label);
    };
    put(1, set_->LabelOf(image));
    const auto own = static_cast<size_t>(PlaceOfSample(first + i).image);
    for (size_t head = 0; head < labels_.size(); ++head) {
      const bool labelled = labels_[head][own] >= 0;
      put(2 + head, labelled ? labels_[head][static_cast<size_t>(image)] : -1);
    }
  }
  Return(std::move(scratch));
  fetched_.fetch_add(count, std::memory_order_relaxed);
  busy_nanoseconds_.fetch_add(Nanoseconds() - start, std::memory_order_relaxed);
  return status;
}

absl::Status ImageSource::AddTo(Fingerprint* print) const {
  std::vector<int32_t> labels(static_cast<size_t>(set_->size()));
  for (int64_t image = 0; image < set_->size(); ++image) {
    labels[static_cast<size_t>(image)] = set_->LabelOf(image);
  }
  print->Add(labels);
  for (const std::vector<int32_t>& of_head : labels_) print->Add(of_head);
  std::string storage;
  for (const int64_t image : Fingerprint::Places(set_->size(), kFingerprintPlaces)) {
    StoredImage stored;
    const absl::Status status = set_->Read(image, kPrintBytes, &storage, &stored);
    if (IsDamage(status) && options_.skip_damaged) continue;
    MP_RETURN_IF_ERROR(status);
    print->Add(stored.bytes.substr(0, static_cast<size_t>(kPrintBytes)));
  }
  return absl::OkStatus();
}

SourceStats ImageSource::stats() const {
  std::lock_guard lock(mutex_);
  return {.samples = fetched_.load(std::memory_order_relaxed),
          .bytes_read = bytes_read_.load(std::memory_order_relaxed),
          .damaged = damaged_.load(std::memory_order_relaxed),
          .busy_seconds = 1e-9 * static_cast<double>(busy_nanoseconds_.load()),
          .first_damage = first_damage_};
}

void ImageSource::NoteDamage(const absl::Status& status) const {
  std::lock_guard lock(mutex_);
  if (first_damage_ != nullptr) return;
  first_damage_ = std::make_shared<const std::string>(status.message());
}

std::unique_ptr<ImageSource::Scratch> ImageSource::Borrow() const {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Scratch>(options_.limits);
  std::unique_ptr<Scratch> scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void ImageSource::Return(std::unique_ptr<Scratch> scratch) const {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

}  // namespace milepost::data
