// Makes sessions of images, which other servers exported.
#pragma once

#include "absl/status/statusor.h"
#include "server/engine/common/session_image.h"
#include "server/engine/sessions/session_create.h"

namespace ovq::engine {

// Engine thread only.
class SessionImporter {
 public:
  SessionImporter(const EngineConfig& config, StatePool& pool, Admission& admission,
                  StartRequest start, SessionTable& table, SessionPersistence& disk,
                  SessionTurns& turns, SessionCreator& creator)
      : config_(config),
        pool_(pool),
        admission_(admission),
        start_(std::move(start)),
        table_(table),
        disk_(disk),
        turns_(turns),
        creator_(creator) {}

  // Makes a session of an image that fits one of the engine's variants, at once or not at all. Its
  // state is taken as it is; a request reads the tokens that the state has not read.
  void Import(SessionImage image, const SessionOptions& options, SteadyTime called,
              SessionCallback done);

 private:
  // A session that callers do not see yet, and the request for its unread tokens.
  absl::StatusOr<std::shared_ptr<Request>> MakeSession(const SessionImage& image,
                                                       const SessionOptions& options);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  const StartRequest start_;
  SessionTable& table_;
  SessionPersistence& disk_;
  SessionTurns& turns_;
  SessionCreator& creator_;
};

}  // namespace ovq::engine
