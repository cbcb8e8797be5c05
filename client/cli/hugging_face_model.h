// Puts a Hugging Face folder's model into a spec, for `model: {hugging_face: FOLDER}`.
//
//   MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobSpec(path, HuggingFaceModel()));
//
// The family and its fields come from the folder's config.json. Fields of that family which the
// spec gives itself count instead. train.init_from becomes the folder, where the spec gives none
// and the folder has weights. model.hugging_face is then empty: what is submitted says all itself.
// A spec without the field stays as it is. The path must be absolute.
//
// Errors: those of models::ModelOfHfFolder. INVALID_ARGUMENT: the spec gives another family, or the
// folder's weights are in a form that is not read.
#ifndef MILEPOST_CLIENT_CLI_HUGGING_FACE_MODEL_H_
#define MILEPOST_CLIENT_CLI_HUGGING_FACE_MODEL_H_

#include "common/spec/parse.h"

namespace milepost::client {

// Blocks on the disk. Thread-safe.
SpecFiller HuggingFaceModel();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_HUGGING_FACE_MODEL_H_
