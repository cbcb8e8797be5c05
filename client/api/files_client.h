// Files that are sent along with jobs, as blocking C++ calls. See connection.h for errors, retries
// and cancellation.
//
//   FilesClient files(connection);
//   MP_ASSIGN_OR_RETURN(bool there, files.Has("default", sent.sha256()));
//   if (!there) MP_RETURN_IF_ERROR(files.Upload("default", sent, archive));
#ifndef MILEPOST_CLIENT_API_FILES_CLIENT_H_
#define MILEPOST_CLIENT_API_FILES_CLIENT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/connection.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// Thread-safe.
class FilesClient {
 public:
  explicit FilesClient(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  // `project`: for whose jobs they are; empty: "default".
  absl::StatusOr<bool> Has(const std::string& project, const std::string& sha256);
  // Sends a file from its beginning, again from there when the coordinator goes away meanwhile.
  // RESOURCE_EXHAUSTED: there is no room for it.
  absl::Status Upload(const std::string& project, const v1::SentFiles& sent, int archive);

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_FILES_CLIENT_H_
