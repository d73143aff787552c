// Workspaces. For decoder.cpp, encoder.cpp and encoder_attention.h.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace pagemill {

// Memory that grows to the widest step and is kept.
class Room {
 public:
  void* of(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(64))));
      bytes_ = bytes;
    }
    return memory_.get();
  }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<char, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace pagemill
