#include "engine/data/images/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
//
#include <jerror.h>
#include <jpeglib.h>

#include "absl/strings/str_cat.h"
#include "engine/data/images/exif.h"

namespace milepost::data {
namespace {

// A progressive file goes over the whole image once per scan; encoders write about ten.
constexpr int kMaxScans = 64;
constexpr int kRowsPerCall = 16;
constexpr absl::string_view kExif("Exif\0\0", 6);

// One JPEG being read. libjpeg reports errors by longjmp: every call into it is made by a Guarded
// member, which has nothing on its stack that would need a destructor, and what a jump must not
// lose is a member.
class JpegReader {
 public:
  explicit JpegReader(absl::string_view bytes) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = &OnError;
    errors_.base.emit_message = &OnMessage;
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
    source_.bytes_in_buffer = bytes.size();
    source_.init_source = [](j_decompress_ptr) {};
    source_.fill_input_buffer = &OnEnd;
    source_.skip_input_data = &Skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = [](j_decompress_ptr) {};
    progress_.progress_monitor = &OnProgress;
  }
  ~JpegReader() {
    if (created_) jpeg_destroy_decompress(&info_);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  absl::Status ReadHeader() {
    if (!GuardedHeader()) return Error();
    if (info_.num_components != 1 && info_.num_components != 3 && info_.num_components != 4) {
      return absl::InvalidArgumentError(
          absl::StrCat("a JPEG of ", info_.num_components, " components; 1, 3 and 4 are decoded"));
    }
    return absl::OkStatus();
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }

  Orientation orientation() const {
    for (auto* marker = info_.marker_list; marker != nullptr; marker = marker->next) {
      const absl::string_view data(reinterpret_cast<const char*>(marker->data),
                                   marker->data_length);
      if (data.substr(0, kExif.size()) == kExif) return OrientationOf(data.substr(kExif.size()));
    }
    return 1;
  }

  absl::Status Decode(const Region& region, int shrink, DecodedRegion* out) {
    const bool cmyk = info_.num_components == 4;
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(shrink);
    info_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    if (!GuardedStart()) return Error();
    Place(region, shrink);
    if (crop_ && !GuardedCrop()) return Error();
    out->image.Resize(width_, bottom_ - top_);
    out->x = left_ * shrink;
    out->y = top_ * shrink;
    out->shrink = shrink;
    if (cmyk) row_.resize(static_cast<size_t>(width_) * 4);
    image_ = &out->image;
    if (!(cmyk ? GuardedCmykRows() : GuardedRows())) return Error();
    return absl::OkStatus();
  }

 private:
  struct ErrorManager {
    jpeg_error_mgr base;
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
  };

  [[noreturn]] static void OnError(j_common_ptr info) {
    auto* errors = reinterpret_cast<ErrorManager*>(info->err);
    errors->base.format_message(info, errors->message);
    std::longjmp(errors->jump, 1);
  }
  // Warnings that do not touch the pixels pass; the rest are corrupt data.
  static void OnMessage(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_ADOBE_XFORM:
      case JWRN_JFIF_MAJOR:
      case JWRN_TOO_MUCH_DATA:
      case JWRN_BOGUS_ICC:
        return;
      default:
        OnError(info);
    }
  }
  [[noreturn]] static void Refuse(j_common_ptr info, const char* why) {
    auto* errors = reinterpret_cast<ErrorManager*>(info->err);
    std::snprintf(errors->message, sizeof errors->message, "%s", why);
    std::longjmp(errors->jump, 1);
  }
  static boolean OnEnd(j_decompress_ptr info) {
    Refuse(reinterpret_cast<j_common_ptr>(info), "the file is truncated");
  }
  static void Skip(j_decompress_ptr info, long count) {  // NOLINT(google-runtime-int): libjpeg's
    if (count <= 0) return;
    if (static_cast<size_t>(count) > info->src->bytes_in_buffer) OnEnd(info);
    info->src->next_input_byte += count;
    info->src->bytes_in_buffer -= static_cast<size_t>(count);
  }
  static void OnProgress(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
    Refuse(info, "more scans than any encoder writes");
  }

  absl::Status Error() const {
    return absl::InvalidArgumentError(absl::StrCat("JPEG: ", errors_.message));
  }

  bool GuardedHeader() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    created_ = true;
    info_.src = &source_;
    info_.progress = &progress_;
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  bool GuardedStart() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    return true;
  }

  // Which part of the shrunk image is decoded. Without its neighbours the outermost column of a
  // cropped decode has other chroma: so a little more is decoded than is wanted.
  void Place(const Region& region, int shrink) {
    constexpr int64_t kMargin = 2;
    const int64_t whole_width = info_.output_width;
    const int64_t whole_height = info_.output_height;
    const auto up = [&](int64_t end) { return (end + shrink - 1) / shrink; };
    top_ = region.y / shrink;
    bottom_ = std::min(whole_height, up(region.y + region.height));
    left_ = std::max<int64_t>(0, region.x / shrink - kMargin);
    width_ = std::min(whole_width, up(region.x + region.width) + kMargin) - left_;
    crop_ = Croppable() && width_ < whole_width;
    if (!crop_) {
      left_ = 0;
      width_ = whole_width;
    }
    skip_ = Croppable() ? top_ : 0;
    if (skip_ == 0) top_ = 0;
  }

  // Cropping and skipping are left to the layouts that cameras and editors write.
  bool Croppable() const {
    for (int i = 0; i < info_.num_components; ++i) {
      const jpeg_component_info& component = info_.comp_info[i];
      if (component.h_samp_factor > 2 || component.v_samp_factor > 2) return false;
      if (i > 0 && (component.h_samp_factor != 1 || component.v_samp_factor != 1)) return false;
    }
    return info_.num_components != 4;
  }

  bool GuardedCrop() {
    if (setjmp(errors_.jump) != 0) return false;
    JDIMENSION x = static_cast<JDIMENSION>(left_);
    JDIMENSION width = static_cast<JDIMENSION>(width_);
    jpeg_crop_scanline(&info_, &x, &width);
    left_ = x;
    width_ = width;
    return true;
  }

  bool GuardedRows() {
    if (setjmp(errors_.jump) != 0) return false;
    if (skip_ > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(skip_));
    while (info_.output_scanline < bottom_) {
      JSAMPROW rows[kRowsPerCall];
      const int64_t at = info_.output_scanline;
      const int64_t count = std::min<int64_t>(kRowsPerCall, bottom_ - at);
      for (int64_t i = 0; i < count; ++i) rows[i] = image_->Row(at + i - top_);
      if (jpeg_read_scanlines(&info_, rows, static_cast<JDIMENSION>(count)) == 0) {
        Refuse(reinterpret_cast<j_common_ptr>(&info_), "no rows came");
      }
    }
    return true;
  }

  bool GuardedCmykRows() {
    if (setjmp(errors_.jump) != 0) return false;
    while (info_.output_scanline < bottom_) {
      const int64_t at = info_.output_scanline;
      JSAMPROW row = row_.data();
      if (jpeg_read_scanlines(&info_, &row, 1) == 0) {
        Refuse(reinterpret_cast<j_common_ptr>(&info_), "no rows came");
      }
      uint8_t* out = image_->Row(at - top_);
      for (int64_t x = 0; x < width_; ++x) {
        const int key = row[x * 4 + 3];
        for (int c = 0; c < 3; ++c) {
          // key * (255 - ink) / 255, rounded; both are stored inverted.
          const int product = (255 - row[x * 4 + c]) * key + 128;
          out[x * 3 + c] = static_cast<uint8_t>(key - ((product + (product >> 8)) >> 8));
        }
      }
    }
    return true;
  }

  jpeg_decompress_struct info_ = {};
  ErrorManager errors_ = {};
  jpeg_source_mgr source_ = {};
  jpeg_progress_mgr progress_ = {};
  bool created_ = false;

  // What is decoded: columns [left, left + width), rows [top, bottom) of the shrunk image.
  int64_t left_ = 0;
  int64_t width_ = 0;
  int64_t top_ = 0;
  int64_t bottom_ = 0;
  int64_t skip_ = 0;
  bool crop_ = false;
  Image* image_ = nullptr;
  std::vector<uint8_t> row_;  // CMYK
};

}  // namespace

bool IsJpeg(absl::string_view bytes) { return bytes.substr(0, 3) == "\xFF\xD8\xFF"; }

absl::StatusOr<ImageInfo> ReadJpegInfo(absl::string_view bytes) {
  JpegReader reader(bytes);
  if (absl::Status status = reader.ReadHeader(); !status.ok()) return status;
  ImageInfo info{.format = ImageFormat::kJpeg, .orientation = reader.orientation()};
  const bool swapped = info.orientation >= 5;
  info.width = swapped ? reader.height() : reader.width();
  info.height = swapped ? reader.width() : reader.height();
  return info;
}

absl::Status DecodeJpeg(absl::string_view bytes, const ImageInfo& info, const Region& region,
                        int shrink, DecodedRegion* out) {
  JpegReader reader(bytes);
  if (absl::Status status = reader.ReadHeader(); !status.ok()) return status;
  const bool swapped = info.orientation >= 5;
  if (reader.width() != (swapped ? info.height : info.width) ||
      reader.height() != (swapped ? info.width : info.height)) {
    return absl::InvalidArgumentError("the file has changed since its header was read");
  }
  return reader.Decode(region, shrink, out);
}

}  // namespace milepost::data
