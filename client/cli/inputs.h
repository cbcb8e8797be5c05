// Checks the files that a job reads before anything starts. So the user who submits learns what is
// wrong, and not a rank hours later. Files are read as ranks read them. They may be large, so only
// headers, sizes and labels are read. Blocks on the disk.
//
//   MP_RETURN_IF_ERROR(CheckReads(spec));                     // all of them must be here
//   std::vector<std::string> elsewhere;                        // "data.train /data/a.bin"
//   MP_RETURN_IF_ERROR(CheckReadsHere(spec, &elsewhere));     // some may be only on the workers
#ifndef MILEPOST_CLIENT_CLI_INPUTS_H_
#define MILEPOST_CLIENT_CLI_INPUTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// The training data's files or folders.
std::vector<std::string> TrainPaths(const v1::JobSpec& spec);

// INVALID_ARGUMENT names the field. Its file cannot be read, is of another kind, has tokens or
// labels that the model lacks, or has weights of another model. `spec` must be normalised and
// valid.
absl::Status CheckReads(const v1::JobSpec& spec);

// Does the same for the files on this machine, except folders of images, which take long to list.
// Files that are not here are added to `elsewhere`, each once.
absl::Status CheckReadsHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere);

// "not on this machine, and so not looked at: ...". Empty when `elsewhere` is empty.
std::string TellElsewhere(const std::vector<std::string>& elsewhere);

// Makes the folder for report.tensorboard on this machine. INVALID_ARGUMENT: it cannot be made or
// written.
absl::Status CheckWrites(const v1::JobSpec& spec);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_INPUTS_H_
