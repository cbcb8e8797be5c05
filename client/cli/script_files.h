// script.files, from the folder to the coordinator.
//
//   ScriptFiles files;
//   MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadSpec(source, &files));  // packs the folder
//   MP_RETURN_IF_ERROR(files.Send(connection, project));
//   jobs.Submit(spec);
#ifndef MILEPOST_CLIENT_CLI_SCRIPT_FILES_H_
#define MILEPOST_CLIENT_CLI_SCRIPT_FILES_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/connection.h"
#include "common/files/pack.h"
#include "common/spec/overrides.h"
#include "common/spec/parse.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// Movable; not thread-safe.
class ScriptFiles {
 public:
  // Packs the folder that script.files names, and puts sent_files in its place. A spec without the
  // field stays as it is. The path must be absolute. This object outlives the filler. Blocks on the
  // disk. Errors: those of PackFolder; INVALID_ARGUMENT: the spec names a folder as well.
  SpecFiller Filler();

  // Does the same for fields that are to be set in another job's spec ("script.files=."): they
  // become those of what is packed. The path may be relative.
  absl::Status PackOverrides(Overrides* overrides);

  // Sends what was packed, unless the coordinator has it. Nothing happens where nothing was packed.
  // Tells the user how much it is. Blocks. Errors: those of connection.h, and RESOURCE_EXHAUSTED.
  absl::Status Send(const std::shared_ptr<Connection>& connection, const std::string& project);

 private:
  absl::Status Pack(v1::JobSpec* spec);
  absl::StatusOr<v1::SentFiles> PackThis(const std::string& folder);

  std::string folder_;
  std::optional<PackedFiles> packed_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_SCRIPT_FILES_H_
