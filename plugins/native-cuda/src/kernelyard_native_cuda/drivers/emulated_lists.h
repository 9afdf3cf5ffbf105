// A list of elements, in place of std::vector: reading the headers of C++'s library and linking it takes as long as compiling a
// short kernel. Included by emulation.h.
#pragma once

namespace emulation {
struct Place { void* at; };
}  // namespace emulation
inline void* operator new(size_t, emulation::Place place) { return place.at; }

namespace emulation {
template <class T> struct List {
  T* items = nullptr;
  size_t many = 0, room = 0;

  List() {}
  explicit List(size_t count) : items((T*)calloc(count, sizeof(T))), many(count), room(count) {}  // of zeros
  List(List&& other) : items(other.items), many(other.many), room(other.room) { other.forget(); }
  List& operator=(List&& other) {
    const List old = {static_cast<List&&>(*this)};
    items = other.items, many = other.many, room = other.room;
    other.forget();
    return *this;
  }
  ~List() { clear(), free(items); }

  T* begin() { return items; }
  T* end() { return items + many; }
  const T* begin() const { return items; }
  const T* end() const { return items + many; }
  T& operator[](size_t n) { return items[n]; }
  const T& operator[](size_t n) const { return items[n]; }
  T& back() { return items[many - 1]; }
  T& add(T&& item) {
    if (many == room) grow();
    return *new (Place{items + many++}) T(static_cast<T&&>(item));
  }
  void erase(size_t n) {
    for (; n + 1 < many; ++n) items[n] = static_cast<T&&>(items[n + 1]);
    items[--many].~T();
  }
  void clear() {
    while (many) items[--many].~T();
  }

 private:
  void forget() { items = nullptr, many = room = 0; }
  void grow() {
    room = room ? 2 * room : 8;
    T* const moved = (T*)malloc(room * sizeof(T));
    for (size_t n = 0; n < many; ++n) new (Place{moved + n}) T(static_cast<T&&>(items[n])), items[n].~T();
    free(items);
    items = moved;
  }
};
}  // namespace emulation
