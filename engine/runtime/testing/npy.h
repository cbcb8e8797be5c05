// For tests: writes .npy arrays.
#ifndef MILEPOST_ENGINE_RUNTIME_TESTING_NPY_H_
#define MILEPOST_ENGINE_RUNTIME_TESTING_NPY_H_

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace milepost::runtime {

// NumPy's format 1.0. `type`: "|u1"; `shape`: "3, 2" or "3,".
inline void WriteNpy(const std::string& path, const std::string& type, const std::string& shape,
                     const std::string& bytes) {
  std::string header =
      absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", shape, "), }");
  header.append(63 - (10 + header.size()) % 64, ' ');
  header.push_back('\n');
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size() % 256)
       << static_cast<char>(header.size() / 256) << header << bytes;
  ASSERT_TRUE(file.good());
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TESTING_NPY_H_
