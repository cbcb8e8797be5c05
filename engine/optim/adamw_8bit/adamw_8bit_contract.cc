#include "engine/optim/adamw_8bit/adamw_8bit_contract.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace milepost::kernels {
namespace {

std::array<float, 256> MakeCodes(bool with_sign) {
  std::vector<double> codes = {0, 1};
  for (int e = 0; e < 7; ++e) {
    const int parts = 1 << (with_sign ? e : e + 1);
    for (int i = 0; i < parts; ++i) {
      const double middle = (0.1 + 0.9 * (i + 0.5) / parts) * std::pow(10.0, e - 6);
      codes.push_back(middle);
      if (with_sign) codes.push_back(-middle);
    }
  }
  std::sort(codes.begin(), codes.end());
  std::array<float, 256> table;
  std::copy(codes.begin(), codes.end(), table.begin());
  return table;
}

CodeBorders MakeBorders(bool with_sign) {
  CodeBorders borders = {.with_sign = with_sign};
  const auto code = [&](int e, double i) {
    return (0.1 + 0.9 * (i + 0.5) / borders.parts[e]) * std::pow(10.0, e - 6);
  };
  for (int e = 0; e < 7; ++e) {
    borders.parts[e] = static_cast<float>(1 << (with_sign ? e : e + 1));
    borders.factor[e] = static_cast<float>(std::pow(10.0, 6 - e) * borders.parts[e] / 0.9);
    const double before = e == 0 ? 0 : code(e - 1, borders.parts[e - 1] - 1);
    borders.lower[e] = static_cast<float>((before + code(e, 0)) / 2);
  }
  borders.first_parts = borders.parts[0];
  borders.one = static_cast<float>((code(6, borders.parts[6] - 1) + 1) / 2);
  borders.most = with_sign ? 128 : 255;
  return borders;
}

}  // namespace

const CodeBorders& SignedBorders() {
  static const CodeBorders borders = MakeBorders(true);
  return borders;
}
const CodeBorders& UnsignedBorders() {
  static const CodeBorders borders = MakeBorders(false);
  return borders;
}

const std::array<float, 256>& SignedCodes() {
  static const std::array<float, 256> codes = MakeCodes(true);
  return codes;
}
const std::array<float, 256>& UnsignedCodes() {
  static const std::array<float, 256> codes = MakeCodes(false);
  return codes;
}

}  // namespace milepost::kernels
