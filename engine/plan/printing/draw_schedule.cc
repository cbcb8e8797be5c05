#include "engine/plan/printing/draw_schedule.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/plan/human_units.h"

namespace milepost::plan {
namespace {

constexpr double kLeft = 70, kWidth = 1000, kTop = 46, kRow = 30, kBelow = 40;

struct Look {
  const char* fill;
  const char* name;
};
constexpr Look kLooks[] = {
    {"#7aa6da", "forward"}, {"#e0a458", "backward"}, {"#8ebf6f", "gradients of weights"}};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

void AddText(double x, double y, const char* anchor, absl::string_view text, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                        anchor, Escaped(text));
}

// `opacity`: 0 to 1.
void AddBox(double x, double y, double width, double height, const char* fill, double opacity,
            std::string& svg) {
  absl::StrAppendFormat(&svg,
                        "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"%s "
                        "stroke=\"#ffffff\"/>\n",
                        x, y, width, height, fill,
                        opacity < 1 ? absl::StrFormat(" fill-opacity=\"%.2f\"", opacity) : "");
}

// The first chunk is the darkest.
double OpacityOf(int chunk, int chunks) { return 1 - 0.65 * chunk / std::max(1, chunks - 1); }

void AddStage(const std::vector<TimedPass>& passes, double y, double scale, int chunks,
              std::string& svg) {
  constexpr double kLegible = 14;  // width of a box that its number fits in
  for (const TimedPass& timed : passes) {
    const double x = kLeft + timed.begin * scale, width = (timed.end - timed.begin) * scale;
    AddBox(x, y, width, kRow - 4, kLooks[static_cast<size_t>(timed.pass.kind)].fill,
           OpacityOf(timed.pass.chunk, chunks), svg);
    if (width < kLegible) continue;
    AddText(x + width / 2, y + kRow / 2 + 2, "middle", absl::StrCat(timed.pass.micro_batch), svg);
  }
}

void AddLegend(double y, const PipelineShape& shape, std::string& svg) {
  double x = kLeft;
  const bool split = shape.schedule == PipelineSchedule::kZeroBubble;
  for (size_t kind = 0; kind < (split ? 3 : 2); ++kind) {
    AddBox(x, y - 11, 14, 14, kLooks[kind].fill, 1, svg);
    AddText(x + 20, y, "start", kLooks[kind].name, svg);
    x += 110;
  }
  for (int chunk = 0; shape.chunks > 1 && chunk < shape.chunks; ++chunk) {
    AddBox(x, y - 11, 14, 14, kLooks[0].fill, OpacityOf(chunk, shape.chunks), svg);
    AddText(x + 20, y, "start", absl::StrCat("chunk ", chunk), svg);
    x += 80;
  }
}

std::string ScheduleText(const PipelineShape& shape) {
  return absl::StrCat(Name(shape.schedule),
                      shape.chunks > 1 ? absl::StrCat(" with ", shape.chunks, " chunks") : "");
}

}  // namespace

std::string DrawSchedule(const PipelineShape& shape, const std::vector<PassTimes>& times,
                         absl::string_view title) {
  const std::vector<std::vector<TimedPass>> timeline = TimelineOf(shape, times);
  double end = 0, busy = 0;
  for (const auto& stage : timeline) {
    for (const TimedPass& timed : stage) {
      end = std::max(end, timed.end);
      busy += timed.end - timed.begin;
    }
  }
  const double scale = end > 0 ? kWidth / end : 1;
  const double height = kTop + kRow * static_cast<double>(timeline.size()) + kBelow;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      kLeft + kWidth + 20, height);
  const double idle = end > 0 ? 1 - busy / (end * static_cast<double>(timeline.size())) : 0;
  AddText(kLeft, 24, "start",
          absl::StrFormat("%s: %d stages, %d micro-batches, %s: %s, stages wait %.0f%% of it",
                          title, shape.stages, shape.micro_batches, ScheduleText(shape),
                          HumanSeconds(end), 100 * idle),
          svg);
  for (size_t stage = 0; stage < timeline.size(); ++stage) {
    const double y = kTop + kRow * static_cast<double>(stage);
    AddText(kLeft - 8, y + kRow / 2 + 2, "end", absl::StrCat("stage ", stage), svg);
    AddStage(timeline[stage], y, scale, shape.chunks, svg);
  }
  AddLegend(height - 16, shape, svg);
  return svg + "</svg>\n";
}

}  // namespace milepost::plan
