// A folder that appears complete or not at all: it is made beside its place, and then renamed.
//
//   MP_ASSIGN_OR_RETURN(const auto folder, NewFolder::Create("out"));
//   MP_RETURN_IF_ERROR(WriteNewFile(folder->path() + "/config.json", text));
//   MP_RETURN_IF_ERROR(folder->Finish());
#ifndef MILEPOST_CLIENT_CLI_NEW_FOLDER_H_
#define MILEPOST_CLIENT_CLI_NEW_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::client {

// Its destructor removes what Finish has not put into place. Blocks on the disk.
class NewFolder {
 public:
  // ALREADY_EXISTS: `target` exists and is not an empty folder.
  static absl::StatusOr<std::unique_ptr<NewFolder>> Create(const std::string& target);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return path_; }
  absl::Status Finish();

 private:
  NewFolder() = default;
  absl::Status CheckTarget() const;

  std::string target_;
  std::string path_;
};

// Makes a file and syncs it. ALREADY_EXISTS: there is one.
absl::Status WriteNewFile(const std::string& path, absl::string_view text);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_NEW_FOLDER_H_
