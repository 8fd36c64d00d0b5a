// An engine on a thread of its own, which its destruction drains without time.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "server/engine/engine.h"
#include "server/engine/engine_loop.h"

namespace ovq {

class EngineThread {
 public:
  EngineThread(EngineModel model, EngineOptions options, std::unique_ptr<DeviceContext> context,
               EngineEvents events)
      : loop_({std::move(model), std::move(options), std::move(events)}, std::move(context)),
        thread_([this] { Run(); }) {}
  ~EngineThread() {
    engine_.Drain(absl::ZeroDuration());
    stopping_ = true;
    loop_.inbox()->Ring();
    thread_.join();
  }

  Engine& engine() { return engine_; }

 private:
  void Run() {
    loop_.BindThread();
    while (!stopping_) {
      const bool progressed = loop_.Turn();
      if (!progressed) loop_.inbox()->Wait(loop_.TimeToNextEnd());
    }
    loop_.Turn();  // what was posted meanwhile
  }

  EngineLoop loop_;
  Engine engine_{loop_};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace ovq
