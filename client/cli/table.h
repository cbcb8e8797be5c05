// Aligned columns for people.
//
//   Table table({"NAME", "STATE"});
//   table.Add({"jobs/7", "RUNNING"});
//   std::string text = table.ToString();
//
// Cells are made printable (format.h). There are two spaces between columns, and none after the
// last one. Not thread-safe.
#ifndef MILEPOST_CLIENT_CLI_TABLE_H_
#define MILEPOST_CLIENT_CLI_TABLE_H_

#include <string>
#include <vector>

namespace milepost::client {

class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // There must be as many cells as the header has (CHECK).
  void Add(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TABLE_H_
