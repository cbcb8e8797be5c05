// The files that a job reads, looked at before anything starts: what is wrong with them is said to
// who submits, and not hours later by a rank. Read as ranks read them; they may be large, and only
// headers, sizes and labels are. Blocks on the disk.
//
//   MP_RETURN_IF_ERROR(CheckReads(spec));                     // all of them must be here
//   std::vector<std::string> elsewhere;                        // "data.train /data/a.bin"
//   MP_RETURN_IF_ERROR(CheckReadsHere(spec, &elsewhere));     // some may be the workers' alone
#ifndef MILEPOST_CLIENT_CLI_INPUTS_H_
#define MILEPOST_CLIENT_CLI_INPUTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// The training data's files or folders.
std::vector<std::string> TrainPaths(const v1::JobSpec& spec);

// INVALID_ARGUMENT with the field: it cannot be read, is no such file, has tokens or labels that
// the model has not, or weights that are not the model's. `spec` is normalised and valid.
absl::Status CheckReads(const v1::JobSpec& spec);

// The same for what is on this machine, but for folders of images, which take long to list; those
// that are not are put into `elsewhere`, each once.
absl::Status CheckReadsHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere);

// "not on this machine, and so not looked at: ..."; empty when there are none.
std::string TellElsewhere(const std::vector<std::string>& elsewhere);

// INVALID_ARGUMENT: the folder for report.tensorboard cannot be made or written on this machine. It
// is made.
absl::Status CheckWrites(const v1::JobSpec& spec);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_INPUTS_H_
