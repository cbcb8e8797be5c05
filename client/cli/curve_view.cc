#include "client/cli/curve_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "common/spec/nearest.h"

namespace milepost::client {
namespace {

constexpr const char* kForemost[] = {"train_loss", "validation_loss", "lr", "grad_norm",
                                     "tokens_per_second"};
constexpr size_t kAxisColumns = 10;  // with the line
constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz";

std::vector<std::string> NamesOf(const v1::JobCurves& curves) {
  std::vector<std::string> names;
  for (const v1::Curve& curve : curves.curves()) names.push_back(curve.name());
  return names;
}

const v1::Curve* Find(const v1::JobCurves& curves, absl::string_view name) {
  const auto found = std::find_if(curves.curves().begin(), curves.curves().end(),
                                  [&](const v1::Curve& curve) { return curve.name() == name; });
  return found == curves.curves().end() ? nullptr : &*found;
}

// The newest point after step `after` and no later than `step`; -1: there is none.
int PointAt(const v1::Curve& curve, int64_t after, int64_t step) {
  const auto end = std::upper_bound(curve.steps().begin(), curve.steps().end(), step);
  if (end == curve.steps().begin()) return -1;
  const auto point = static_cast<int>(end - curve.steps().begin()) - 1;
  return curve.steps(point) > after ? point : -1;
}

std::string CellText(const v1::Curve& curve, int point) {
  if (point < 0) return "-";
  std::string text = CurveValueText(curve.name(), curve.means(point));
  const int64_t others = curve.not_finite().empty() ? 0 : curve.not_finite(point);
  if (others > 0 && std::isfinite(curve.means(point))) {
    absl::StrAppend(&text, " (", others, " NaN)");
  }
  return text;
}

// ---- plots ----

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // 0 to cells - 1.
  size_t Cell(double value, size_t cells) const {
    if (!std::isfinite(value) || high <= low) return 0;
    const double share = std::clamp((value - low) / (high - low), 0.0, 1.0);
    return static_cast<size_t>(std::lround(share * static_cast<double>(cells - 1)));
  }
};

// Who was there last; 0: nobody.
class Canvas {
 public:
  Canvas(size_t width, size_t height) : width_(width), height_(height), cells_(width * height, 0) {}

  // From the bottom up.
  void Fill(size_t x, size_t from, size_t to, char who) {
    for (size_t y = std::min(from, to); y <= std::max(from, to); ++y) {
      cells_[(height_ - 1 - y) * width_ + x] = who;
    }
  }
  char At(size_t x, size_t row) const { return cells_[row * width_ + x]; }

 private:
  const size_t width_, height_;
  std::vector<char> cells_;
};

// U+2800 and a bit for each of two by four dots.
std::string Braille(const Canvas& canvas, size_t x, size_t row) {
  static constexpr int kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  int bits = 0;
  for (size_t dy = 0; dy < 4; ++dy) {
    for (size_t dx = 0; dx < 2; ++dx) {
      if (canvas.At(2 * x + dx, 4 * row + dy) != 0) bits |= kDots[dy][dx];
    }
  }
  if (bits == 0) return " ";
  return {'\xe2', static_cast<char>(0xa0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3f))};
}

class Plot {
 public:
  Plot(const std::vector<PlottedCurve>& curves, const PlotSize& size)
      : curves_(curves),
        braille_(size.unicode && curves.size() == 1),
        columns_(std::max<size_t>(size.columns, 40) - kAxisColumns),
        rows_(std::max<size_t>(size.rows, 4)),
        width_(columns_ * (braille_ ? 2 : 1)),
        height_(rows_ * (braille_ ? 4 : 1)),
        canvas_(width_, height_) {
    for (const PlottedCurve& one : curves_) {
      for (int i = 0; i < one.curve.steps_size(); ++i) {
        steps_.Take(static_cast<double>(one.curve.steps(i)));
        values_.Take(Low(one.curve, i));
        values_.Take(High(one.curve, i));
      }
    }
    if (values_.empty()) return;
    for (size_t i = 0; i < curves_.size(); ++i) Draw(curves_[i].curve, Letter(i));
  }

  std::string ToString(absl::string_view name) const {
    if (values_.empty()) return "";
    std::string text;
    for (size_t row = 0; row < rows_; ++row) {
      absl::StrAppend(&text, AxisText(name, row), braille_ ? "\u2502" : "|", LineText(row), "\n");
    }
    const std::string first = absl::StrFormat("step %.0f", steps_.low);
    const std::string last = absl::StrFormat("%.0f", steps_.high);
    absl::StrAppendFormat(&text, "%*s%s%*s\n", kAxisColumns, "", first, columns_ - first.size(),
                          steps_.high > steps_.low ? last : "");
    return text;
  }

  static char Letter(size_t index) { return kLetters[index % (sizeof(kLetters) - 1)]; }

 private:
  struct Dot {
    size_t x = 0, y = 0;
  };

  // Of one curve alone the least and the most are drawn.
  double Low(const v1::Curve& curve, int i) const {
    return curves_.size() == 1 ? curve.mins(i) : curve.means(i);
  }
  double High(const v1::Curve& curve, int i) const {
    return curves_.size() == 1 ? curve.maxs(i) : curve.means(i);
  }

  void Draw(const v1::Curve& curve, char who) {
    Dot last;  // of means
    bool joins = false;
    for (int i = 0; i < curve.steps_size(); ++i) {
      if (!std::isfinite(curve.means(i))) {
        joins = false;  // a gap
        continue;
      }
      const size_t x = steps_.Cell(static_cast<double>(curve.steps(i)), width_);
      const size_t y = values_.Cell(curve.means(i), height_);
      canvas_.Fill(x, values_.Cell(Low(curve, i), height_), values_.Cell(High(curve, i), height_),
                   who);
      if (joins) Connect(last, {x, y}, who);
      last = {x, y};
      joins = true;
    }
  }

  // Without gaps, and no thicker than it has to be.
  void Connect(const Dot& from, const Dot& to, char who) {
    if (from.x == to.x) return canvas_.Fill(to.x, from.y, to.y, who);
    size_t before = from.y;
    for (size_t x = from.x + 1; x <= to.x; ++x) {
      const double share = static_cast<double>(x - from.x) / static_cast<double>(to.x - from.x);
      const auto y = static_cast<size_t>(
          std::lround(std::lerp(static_cast<double>(from.y), static_cast<double>(to.y), share)));
      const size_t next = y > before ? before + 1 : y < before ? before - 1 : y;
      canvas_.Fill(x, next, y, who);
      before = y;
    }
  }

  std::string AxisText(absl::string_view name, size_t row) const {
    const double share = 1 - static_cast<double>(row) / static_cast<double>(rows_ - 1);
    const bool told = row == 0 || row == rows_ - 1 || row == rows_ / 2;
    const double value = values_.low + share * (values_.high - values_.low);
    return absl::StrFormat("%*s ", kAxisColumns - 2, told ? CurveValueText(name, value) : "");
  }

  std::string LineText(size_t row) const {
    std::string line;
    for (size_t x = 0; x < columns_; ++x) {
      if (braille_) {
        absl::StrAppend(&line, Braille(canvas_, x, row));
      } else {
        const char who = canvas_.At(x, row);
        line.push_back(who == 0 ? ' ' : curves_.size() == 1 ? '*' : who);
      }
    }
    return std::string(absl::StripTrailingAsciiWhitespace(line));
  }

  const std::vector<PlottedCurve>& curves_;
  const bool braille_;
  const size_t columns_, rows_;  // of characters
  const size_t width_, height_;  // of dots
  Range steps_, values_;
  Canvas canvas_;
};

// Nothing where all was finite.
std::string NotFiniteText(const v1::Curve& curve) {
  int64_t reports = 0, first = 0, last = 0;
  for (int i = 0; i < curve.not_finite_size(); ++i) {
    if (curve.not_finite(i) == 0) continue;
    // A point stands for the steps after the one before it.
    if (reports == 0) first = i == 0 ? 0 : curve.steps(i - 1);
    last = curve.steps(i);
    reports += curve.not_finite(i);
  }
  if (reports == 0) return "";
  return absl::StrCat(reports, reports == 1 ? " report is" : " reports are",
                      " NaN or infinite, after step ", first, " up to step ", last);
}

}  // namespace

absl::StatusOr<v1::JobCurves> Chosen(const v1::JobCurves& curves, absl::string_view job,
                                     const std::vector<std::string>& names) {
  v1::JobCurves chosen;
  for (const std::string& name : names) {
    const v1::Curve* curve = Find(curves, name);
    if (curve == nullptr) {
      const std::vector<std::string> there = NamesOf(curves);
      if (there.empty()) {
        return absl::NotFoundError(
            absl::StrCat(job, " has no curves: it has reported nothing yet"));
      }
      return absl::NotFoundError(absl::StrCat(job, " has no curve '", name, "', but ",
                                              absl::StrJoin(there, ", "), DidYouMean(name, there)));
    }
    *chosen.add_curves() = *curve;
  }
  return chosen;
}

v1::JobCurves Foremost(const v1::JobCurves& curves) {
  v1::JobCurves foremost;
  for (const char* name : kForemost) {
    const v1::Curve* curve = Find(curves, name);
    if (curve != nullptr) *foremost.add_curves() = *curve;
  }
  return foremost;
}

std::string CurveTable(const v1::JobCurves& curves) {
  std::vector<std::string> header = {"STEP"};
  const v1::Curve* longest = nullptr;
  for (const v1::Curve& curve : curves.curves()) {
    header.push_back(absl::AsciiStrToUpper(curve.name()));
    if (longest == nullptr || curve.steps_size() > longest->steps_size()) longest = &curve;
  }
  Table table(header);
  int64_t before = std::numeric_limits<int64_t>::min();
  for (int i = 0; longest != nullptr && i < longest->steps_size(); ++i) {
    const int64_t step = longest->steps(i);
    std::vector<std::string> cells = {absl::StrCat(step)};
    for (const v1::Curve& curve : curves.curves()) {
      cells.push_back(CellText(curve, PointAt(curve, before, step)));
    }
    table.Add(std::move(cells));
    before = step;
  }
  return table.ToString();
}

std::string CurveValueText(absl::string_view curve, double value) {
  if (!std::isfinite(value)) return "NaN";
  if (absl::StartsWith(curve, "validation_accuracy") || curve == "mfu") {
    return absl::StrFormat("%.1f%%", 100 * value);
  }
  if (curve == "loss_scale") return HumanCount(value);
  if (absl::StrContains(curve, "loss")) {
    return std::abs(value) < 1e4 ? LossText(value) : absl::StrFormat("%.2e", value);
  }
  if (curve == "lr") return RateText(value);
  if (curve == "tokens_per_second") return HumanCount(value);
  return absl::StrFormat("%.4g", value);
}

std::string CurvePlot(absl::string_view name, const std::vector<PlottedCurve>& curves,
                      const PlotSize& size) {
  std::string text;
  std::string unit;
  for (const PlottedCurve& one : curves) unit = one.curve.unit();
  absl::StrAppend(&text, name, unit.empty() ? "" : absl::StrCat(", ", unit), "\n");
  absl::StrAppend(&text, Plot(curves, size).ToString(name));
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string bad = NotFiniteText(curves[i].curve);
    if (curves.size() == 1 && bad.empty()) continue;
    const std::string letter =
        curves.size() == 1 ? "" : absl::StrCat(std::string(1, Plot::Letter(i)), "  ");
    absl::StrAppend(&text, letter, curves[i].job, bad.empty() ? "" : ": ", bad, "\n");
  }
  return text;
}

bool ShowsUnicode(absl::string_view lc_all, absl::string_view lc_ctype, absl::string_view lang) {
  const absl::string_view counts = !lc_all.empty() ? lc_all : !lc_ctype.empty() ? lc_ctype : lang;
  const std::string lower = absl::AsciiStrToLower(counts);
  return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
}

}  // namespace milepost::client
