#include "engine/data/images/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/data/images/exif.h"

namespace milepost::data {
namespace {

constexpr absl::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
// Of all that is not pixels: text, profiles, palettes.
constexpr png_alloc_size_t kMaxChunkBytes = 8 << 20;
constexpr png_uint_32 kMaxCachedChunks = 128;

// One PNG being read; errors as in jpeg.cc: a longjmp out of a Guarded member.
class PngReader {
 public:
  explicit PngReader(absl::string_view bytes) : rest_(bytes) {}
  ~PngReader() {
    if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  absl::Status ReadHeader() { return GuardedHeader() ? absl::OkStatus() : Error(); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  Orientation orientation() const { return orientation_; }

  absl::Status Decode(const Region& region, DecodedRegion* out) {
    if (!GuardedTransforms()) return Error();
    out->shrink = 1;
    image_ = &out->image;
    if (png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE) {
      out->x = 0;
      out->y = 0;
      out->image.Resize(width(), height());
      rows_.resize(static_cast<size_t>(height()));
      for (int64_t y = 0; y < height(); ++y) rows_[static_cast<size_t>(y)] = out->image.Row(y);
      return GuardedImage() ? absl::OkStatus() : Error();
    }
    out->x = region.x;
    out->y = region.y;
    out->image.Resize(region.width, region.height);
    row_.resize(static_cast<size_t>(width()) * 3);
    region_ = region;
    return GuardedRows() ? absl::OkStatus() : Error();
  }

 private:
  [[noreturn]] static void OnError(png_structp png, png_const_charp message) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->message_, sizeof reader->message_, "%s", message);
    std::longjmp(reader->jump_, 1);
  }
  static void Read(png_structp png, png_bytep out, size_t count) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader->rest_.size()) png_error(png, "the file is truncated");
    std::memcpy(out, reader->rest_.data(), count);
    reader->rest_.remove_prefix(count);
  }

  absl::Status Error() const { return absl::InvalidArgumentError(absl::StrCat("PNG: ", message_)); }

  bool GuardedHeader() {
    if (setjmp(jump_) != 0) return false;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &OnError, [](auto, auto) {});
    if (png_ == nullptr || (info_ = png_create_info_struct(png_)) == nullptr) {
      std::snprintf(message_, sizeof message_, "out of memory");
      return false;
    }
    png_set_read_fn(png_, this, &Read);
    png_set_user_limits(png_, kMaxImageSide, kMaxImageSide);
    png_set_chunk_cache_max(png_, kMaxCachedChunks);
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_read_info(png_, info_);
    png_bytep exif = nullptr;
    png_uint_32 exif_bytes = 0;
    if (png_get_eXIf_1(png_, info_, &exif_bytes, &exif) != 0) {
      orientation_ = OrientationOf({reinterpret_cast<const char*>(exif), exif_bytes});
    }
    return true;
  }

  // To 8-bit RGB, whatever it is.
  bool GuardedTransforms() {
    if (setjmp(jump_) != 0) return false;
    png_set_scale_16(png_);
    png_set_expand(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    if (png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE) png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != static_cast<size_t>(width()) * 3) {
      png_error(png_, "pixels that do not become RGB");
    }
    return true;
  }

  bool GuardedImage() {
    if (setjmp(jump_) != 0) return false;
    png_read_image(png_, rows_.data());
    return true;
  }

  bool GuardedRows() {
    if (setjmp(jump_) != 0) return false;
    for (int64_t y = 0; y < region_.y + region_.height; ++y) {
      png_read_row(png_, row_.data(), nullptr);
      if (y < region_.y) continue;
      std::memcpy(image_->Row(y - region_.y), row_.data() + region_.x * 3,
                  static_cast<size_t>(region_.width) * 3);
    }
    return true;
  }

  absl::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char message_[160] = {};
  Orientation orientation_ = 1;

  Image* image_ = nullptr;
  Region region_;
  std::vector<uint8_t> row_;
  std::vector<png_bytep> rows_;
};

}  // namespace

bool IsPng(absl::string_view bytes) { return bytes.substr(0, kSignature.size()) == kSignature; }

absl::StatusOr<ImageInfo> ReadPngInfo(absl::string_view bytes) {
  PngReader reader(bytes);
  MP_RETURN_IF_ERROR(reader.ReadHeader());
  ImageInfo info{.format = ImageFormat::kPng, .orientation = reader.orientation()};
  const bool swapped = info.orientation >= 5;
  info.width = swapped ? reader.height() : reader.width();
  info.height = swapped ? reader.width() : reader.height();
  return info;
}

absl::Status DecodePng(absl::string_view bytes, const ImageInfo& info, const Region& region,
                       DecodedRegion* out) {
  PngReader reader(bytes);
  MP_RETURN_IF_ERROR(reader.ReadHeader());
  const bool swapped = info.orientation >= 5;
  if (reader.width() != (swapped ? info.height : info.width) ||
      reader.height() != (swapped ? info.width : info.height)) {
    return absl::InvalidArgumentError("the file has changed since its header was read");
  }
  return reader.Decode(region, out);
}

}  // namespace milepost::data
