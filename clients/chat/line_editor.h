// Turns as a person types them on a terminal: lines that can be edited, a history, pastes that
// arrive whole. The editing is libedit's, with its keys and ~/.editrc.
#pragma once

#include <termios.h>

#include <atomic>
#include <optional>
#include <string>

#include "clients/chat/terminal.h"

struct editline;
struct history;

namespace ovq {

// At most one, on stdin and stderr. Between two calls of Next the terminal shows nothing of what is
// typed, and the next one reads it; Ctrl-C is SIGINT then.
class LineEditor final : public Input {
 public:
  // What was typed is kept in the file for later runs, readable for its owner only; "": it is not.
  // colored: prompts are shown in bold.
  LineEditor(std::string history_file, bool colored);
  ~LineEditor() override;
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // A turn has several lines if a block was pasted or Alt-Enter typed. Ctrl-C drops what is typed;
  // twice in a row without any, it is the end of input.
  // The prompt is ASCII.
  std::optional<std::string> Next(const std::string& prompt) override;
  bool interrupted() const override { return interrupts_ > 1; }

  // Any thread. The terminal is as it was before this object was made.
  void Stop() override;
  void Resized();
  void Restore();

 private:
  static LineEditor& FromEditline(editline* edit);
  static char* Prompt(editline* edit);
  // Functions that keys are bound to.
  static unsigned char OnInterrupt(editline* edit, int key);
  static unsigned char OnNewline(editline* edit, int key);
  static unsigned char OnPaste(editline* edit, int key);
  static unsigned char OnSuspend(editline* edit, int key);
  static int ReadChar(editline* edit, wchar_t* out);

  void BindKeys();
  void Redraw();
  // The next character of what was read; false: more bytes are needed.
  bool ConsumeChar(wchar_t& out);
  // False at the end of input and after Stop.
  bool ReadBytes();
  void Remember(const std::string& line);
  void HideTyping();

  const std::string history_file_;
  const bool colored_;
  termios before_ = {};
  int wake_fd_;
  std::atomic<bool> stop_ = false, resized_ = false;
  editline* edit_;
  struct history* history_;
  std::string prompt_;
  int prompt_width_ = 0;
  std::string bytes_;  // read, from consumed_ on not yet taken
  size_t consumed_ = 0;
  bool interrupt_ = false;  // of the line that is being typed
  int interrupts_ = 0;      // in a row, without a line between
};

// Where the history is kept: $XDG_STATE_HOME/ovq-chat/history, by default below ~/.local/state;
// "" if there is no such place.
std::string DefaultHistoryFile();

}  // namespace ovq
