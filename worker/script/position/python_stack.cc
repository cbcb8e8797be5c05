#include "worker/script/position/python_stack.h"

#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/utf8.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostFrames = 256;
constexpr size_t kMostNameBytes = 80;

struct Frame {
  absl::string_view file;
  absl::string_view line;
  absl::string_view function;
};

// `  File "train.py", line 88 in main`.
std::optional<Frame> FrameOf(absl::string_view text) {
  constexpr absl::string_view kLine = "\", line ", kIn = " in ";
  if (!absl::ConsumePrefix(&text, "  File \"")) return std::nullopt;
  const size_t file_end = text.rfind(kLine);
  if (file_end == absl::string_view::npos) return std::nullopt;
  Frame frame = {.file = text.substr(0, file_end)};
  text.remove_prefix(file_end + kLine.size());
  const size_t line_end = text.find(kIn);
  if (line_end == absl::string_view::npos) return std::nullopt;
  frame.line = text.substr(0, line_end);
  frame.function = text.substr(line_end + kIn.size());
  return frame;
}

// Of the thread that comes last, which is the main one: innermost first.
std::vector<Frame> LastStack(absl::string_view text) {
  std::vector<Frame> frames;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::EndsWith(line, "(most recent call first):")) frames.clear();
    const std::optional<Frame> frame = FrameOf(line);
    if (frame.has_value() && frames.size() < kMostFrames) frames.push_back(*frame);
  }
  return frames;
}

bool IsLibrarys(absl::string_view file) {
  return absl::StartsWith(file, "<") || absl::StrContains(file, "/site-packages/") ||
         absl::StrContains(file, "/dist-packages/") || absl::StrContains(file, "/lib/python") ||
         absl::EndsWith(file, "/sitecustomize.py");
}

std::string ShortPath(absl::string_view file, absl::string_view folder) {
  if (!folder.empty() && absl::ConsumePrefix(&file, absl::StrCat(folder, "/"))) {
    return CutUtf8(file, kMostNameBytes);
  }
  const size_t slash = file.rfind('/');
  if (slash != absl::string_view::npos) file.remove_prefix(slash + 1);
  return CutUtf8(file, kMostNameBytes);
}

}  // namespace

std::string PlaceInStack(absl::string_view text, absl::string_view folder) {
  const std::vector<Frame> frames = LastStack(text);
  const Frame* own = nullptr;
  for (const Frame& frame : frames) {
    if (own == nullptr && !IsLibrarys(frame.file)) own = &frame;
  }
  if (frames.empty()) return "";
  const Frame& innermost = frames.front();
  const std::string within = absl::StrCat(CutUtf8(innermost.function, kMostNameBytes), " of ",
                                          ShortPath(innermost.file, ""));
  if (own == nullptr) return within;
  std::string place = absl::StrCat(ShortPath(own->file, folder), ":", CutUtf8(own->line, 9), " (",
                                   CutUtf8(own->function, kMostNameBytes), ")");
  return own == &innermost ? place : absl::StrCat(place, ", in ", within);
}

}  // namespace milepost::worker
