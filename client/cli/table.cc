#include "client/cli/table.h"

#include <algorithm>

#include "client/cli/format.h"
#include "common/check.h"

namespace milepost::client {

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::Add(std::vector<std::string> cells) {
  MP_CHECK(cells.size() == rows_[0].size()) << cells.size() << " cells";
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], ColumnsOf(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      text += row[i];
      text.append(widths[i] - ColumnsOf(row[i]) + 2, ' ');
    }
    text += row.back();
    text += '\n';
  }
  return text;
}

}  // namespace milepost::client
