; The thread pool of a process, behind the interface of GNU OpenMP's runtime library (libgomp.h and omp.h name what each
; entry point takes). thread_pool.py compiles this text once, fills in its constants, and says how it is used.
;
; A parallel region is a team of numbered members, which all run one function. The thread that starts it is member 0. The
; others are claimed: by workers that are awake, and, when the starting thread is through with its own part, by itself.
; So a worker that sleeps, or has no core, delays nobody. A member waits for a while, then sleeps on a futex.

; word: generation << 32 | members << 16 | members claimed, changed by compare-and-exchange alone
; finished: members that are through, without member 0; arrived and phase: the barrier's
%member = type { ptr, i32, i32, i64, i64, i64, i64, i64 } ; team, number, members; of a loop: start, end, step, chunk, turn
%team = type { i64, ptr, ptr, ptr, i32, [28 x i8], i32, i32, [56 x i8], i32, i32, i32, [52 x i8], %member, [8 x i8] }
; word, function, data, member outside, used | finished, starter sleeps | arrived, phase, members asleep | member 0

@teams = internal global [${TEAMS} x %team] zeroinitializer, align 64
@teams_used = internal global i32 0, align 64     ; teams from here on have never been used
@epoch = internal global i32 0, align 64          ; grows with each region; workers sleep on it
@sleepers = internal global i32 0, align 64
@workers = internal global i32 0, align 64
@most_workers = internal global i32 0
@default_threads = internal global i32 1
@contended_until = internal global i64 0, align 64 ; nanoseconds of the monotonic clock
@contended_period = internal global i64 0, align 8 ; doubled where preemptions go on
@left_asleep = internal global i32 0, align 64     ; short regions for which no worker was woken
@looked_at = internal global i64 0, align 8        ; when a thread that started regions last asked whether it was preempted
@naps = internal global i32 0, align 64            ; grows when workers that nap are called
@nappers = internal global i32 0, align 4
@member_key = internal global i32 0               ; of this thread's member, and of its number of threads
@threads_key = internal global i32 0
@preemptions_key = internal global i32 0          ; how often this thread had been preempted

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @getrusage(i32, ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare i32 @sched_yield()
declare void ${PAUSE_DECLARED}

; --- waiting ----------------------------------------------------------------------------------------------------------
define internal i64 @now() {
  %time = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %nanoseconds.at = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %nanoseconds.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanoseconds
  ret i64 %sum
}

; was_preempted(): whether the system has taken this thread off its core, for another one, since it was last asked. Not the
; clock says that: an interrupt takes time too, and so does what the host of a virtual machine does.
define internal i1 @was_preempted() {
  %usage = alloca [18 x i64]
  %status = call i32 @getrusage(i32 1, ptr %usage)
  %count.at = getelementptr [18 x i64], ptr %usage, i64 0, i64 17
  %count = load i64, ptr %count.at
  %key = load i32, ptr @preemptions_key
  %before = call ptr @pthread_getspecific(i32 %key)
  %now = inttoptr i64 %count to ptr
  %set = call i32 @pthread_setspecific(i32 %key, ptr %now)
  %more = icmp ne ptr %before, %now
  ret i1 %more
}

; contend(now): somebody else wants the cores, for a while
define internal void @contend(i64 %clock) {
  %last = load atomic i64, ptr @contended_until monotonic, align 8
  %period = load atomic i64, ptr @contended_period monotonic, align 8
  %twice = shl i64 %period, 1
  %near = add i64 %last, ${RECENT_NS}
  %goes_on = icmp ult i64 %clock, %near
  %is_short = icmp ult i64 %twice, ${MAX_CONTENDED_NS}
  %longer = select i1 %is_short, i64 %twice, i64 ${MAX_CONTENDED_NS}
  %next_period = select i1 %goes_on, i64 %longer, i64 ${CONTENDED_NS}
  store atomic i64 %next_period, ptr @contended_period monotonic, align 8
  %until_now = add i64 %clock, %next_period
  store atomic i64 %until_now, ptr @contended_until monotonic, align 8
  ret void
}

; notice(now): whether this thread was preempted at work shows the same as at waiting
define internal void @notice(i64 %clock) {
entry:
  %preempted = call i1 @was_preempted()
  br i1 %preempted, label %contended, label %done
contended:
  call void @contend(i64 %clock)
  br label %done
done:
  ret void
}

; nap(): what a worker does in such a time. A member that it claims may be taken off its core with it, and who started the
; region waits for a core then; so the worker leaves short regions to that thread, and comes for the long ones.
define internal void @nap() {
  %time = alloca [2 x i64]
  store i64 0, ptr %time
  %nanoseconds.at = getelementptr i64, ptr %time, i64 1
  store i64 ${NAP_NS}, ptr %nanoseconds.at
  %old = load atomic i32, ptr @naps seq_cst, align 4
  %counted = atomicrmw add ptr @nappers, i32 1 seq_cst
  %woken = call i64 (i64, ...) @syscall(i64 ${FUTEX}, ptr @naps, i32 128, i32 %old, ptr %time)
  %uncounted = atomicrmw sub ptr @nappers, i32 1 seq_cst
  ret void
}

; wait(word, old, sleeping): until the word is another. It spins for as long as that pays; where it was preempted meanwhile,
; somebody else wants the core, and for a while nobody here spins for more than a moment: for longer where that goes on.
; Before it sleeps it counts itself in `sleeping`, which who changes the word reads after.
define internal void @wait(ptr %word, i32 %old, ptr %sleeping) {
entry:
  %begin = call i64 @now()
  br label %look
look:
  %before = phi i64 [ %begin, %entry ], [ %clock, %spun ]
  br label %spin
spin:
  %turn = phi i32 [ 0, %look ], [ %next, %same ]
  %value = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %value, %old
  br i1 %changed, label %done, label %same
same:
  call void ${PAUSE}
  %next = add i32 %turn, 1
  %again = icmp ult i32 %next, 8
  br i1 %again, label %spin, label %spun_turns
spun_turns:
  %clock = call i64 @now()
  %gap = sub i64 %clock, %before
  %held_up = icmp ugt i64 %gap, ${GAP_NS}
  br i1 %held_up, label %ask, label %judge
ask:
  %preempted = call i1 @was_preempted()
  br i1 %preempted, label %contended, label %judge
contended:
  call void @contend(i64 %clock)
  br label %judge
judge:
  %until = load atomic i64, ptr @contended_until monotonic, align 8
  %alone = icmp uge i64 %clock, %until
  %patience = select i1 %alone, i64 ${SPIN_NS}, i64 ${CONTENDED_SPIN_NS}
  %spent = sub i64 %clock, %begin
  %enough = icmp ugt i64 %spent, %patience
  br i1 %enough, label %sleep, label %spun
spun:
  br label %look
sleep:
  %counted = atomicrmw add ptr %sleeping, i32 1 seq_cst
  br label %doze
doze:
  %here = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %here, %old
  br i1 %still, label %rest, label %awake
rest:
  %woken = call i64 (i64, ...) @syscall(i64 ${FUTEX}, ptr %word, i32 128, i32 %old, ptr null)
  br label %doze
awake:
  %uncounted = atomicrmw sub ptr %sleeping, i32 1 seq_cst
  br label %done
done:
  ret void
}

; wake(word, sleeping, count): those that sleep until the word changes, after it has changed
define internal void @wake(ptr %word, ptr %sleeping, i32 %count) {
  %asleep = load atomic i32, ptr %sleeping seq_cst, align 4
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %done, label %rouse
rouse:
  %woken = call i64 (i64, ...) @syscall(i64 ${FUTEX}, ptr %word, i32 129, i32 %count)
  br label %done
done:
  ret void
}

; --- members ----------------------------------------------------------------------------------------------------------
; run_member(team): claim a member and run it; false where all are claimed
define internal i1 @run_member(ptr %team) {
entry:
  %member = alloca %member
  br label %look
look:
  %word = load atomic i64, ptr %team acquire, align 64
  %claimed = and i64 %word, 65535
  %size.high = lshr i64 %word, 16
  %size = and i64 %size.high, 65535
  %open = icmp ult i64 %claimed, %size
  br i1 %open, label %claim, label %closed
claim:
  %taken = add i64 %word, 1
  %pair = cmpxchg ptr %team, i64 %word, i64 %taken acq_rel acquire, align 64
  %ours = extractvalue { i64, i1 } %pair, 1
  br i1 %ours, label %run, label %look
run:
  %number = trunc i64 %claimed to i32
  %members = trunc i64 %size to i32
  store ptr %team, ptr %member
  %number.at = getelementptr %member, ptr %member, i64 0, i32 1
  store i32 %number, ptr %number.at
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  store i32 %members, ptr %members.at
  %key = load i32, ptr @member_key
  %outside = call ptr @pthread_getspecific(i32 %key)
  %set = call i32 @pthread_setspecific(i32 %key, ptr %member)
  %function.at = getelementptr %team, ptr %team, i64 0, i32 1
  %function = load ptr, ptr %function.at
  %data.at = getelementptr %team, ptr %team, i64 0, i32 2
  %data = load ptr, ptr %data.at
  call void %function(ptr %data)
  %reset = call i32 @pthread_setspecific(i32 %key, ptr %outside)
  %finished = getelementptr %team, ptr %team, i64 0, i32 6
  %earlier = atomicrmw add ptr %finished, i32 1 seq_cst
  %starter = getelementptr %team, ptr %team, i64 0, i32 7
  call void @wake(ptr %finished, ptr %starter, i32 1)
  ret i1 true
closed:
  ret i1 false
}

define internal ptr @worker(ptr %unused) {
entry:
  br label %begin
worked:
  %worked.at = call i64 @now()
  call void @notice(i64 %worked.at)
  %until = load atomic i64, ptr @contended_until monotonic, align 8
  %contended = icmp ult i64 %worked.at, %until
  br i1 %contended, label %rest, label %begin
rest:
  call void @nap()
  br label %begin
begin:
  %seen = load atomic i32, ptr @epoch acquire, align 4
  %used = load atomic i32, ptr @teams_used acquire, align 4
  br label %scan
scan:
  %n = phi i32 [ 0, %begin ], [ %next, %look ]
  %more = icmp ult i32 %n, %used
  br i1 %more, label %look, label %idle
look:
  %team = getelementptr [${TEAMS} x %team], ptr @teams, i64 0, i32 %n
  %ran = call i1 @run_member(ptr %team)
  %next = add i32 %n, 1
  br i1 %ran, label %worked, label %scan
idle:
  %clock = call i64 @now()
  %end = load atomic i64, ptr @contended_until monotonic, align 8
  %is_contended = icmp ult i64 %clock, %end
  br i1 %is_contended, label %rest, label %stay
stay:
  call void @wait(ptr @epoch, i32 %seen, ptr @sleepers)
  br label %begin
}

; add_worker(most): one more, unless there are as many; true where one was added
define internal i1 @add_worker(i32 %most) {
entry:
  %thread = alloca i64
  br label %look
look:
  %count = load atomic i32, ptr @workers acquire, align 4
  %few = icmp slt i32 %count, %most
  br i1 %few, label %claim, label %enough
claim:
  %more = add i32 %count, 1
  %pair = cmpxchg ptr @workers, i32 %count, i32 %more acq_rel acquire, align 4
  %ours = extractvalue { i32, i1 } %pair, 1
  br i1 %ours, label %create, label %look
create:
  %status = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr null)
  %created = icmp eq i32 %status, 0
  br i1 %created, label %detach, label %fail
detach:
  %id = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %id)
  ret i1 true
fail:
  %fewer = atomicrmw sub ptr @workers, i32 1 seq_cst
  ret i1 false
enough:
  ret i1 false
}

; --- regions ----------------------------------------------------------------------------------------------------------
define internal ptr @acquire_team() {
entry:
  br label %scan
scan:
  %n = phi i32 [ 0, %entry ], [ %next, %busy ], [ 0, %yield ]
  %some = icmp ult i32 %n, ${TEAMS}
  br i1 %some, label %look, label %yield
look:
  %team = getelementptr [${TEAMS} x %team], ptr @teams, i64 0, i32 %n
  %used = getelementptr %team, ptr %team, i64 0, i32 4
  %pair = cmpxchg ptr %used, i32 0, i32 1 acquire monotonic, align 4
  %ours = extractvalue { i32, i1 } %pair, 1
  br i1 %ours, label %take, label %busy
busy:
  %next = add i32 %n, 1
  br label %scan
yield:
  %yielded = call i32 @sched_yield()
  br label %scan
take:
  %high = add i32 %n, 1
  %before = atomicrmw umax ptr @teams_used, i32 %high seq_cst
  ret ptr %team
}

; start(function, data, wanted, meets): a region whose members may wait for each other, if it meets, where the pool does not
; see it: a library's own barriers spin. Partly manned teams of several callers could then wait for each other's workers.
define internal void @start(ptr %function, ptr %data, i32 %wanted, i1 %meets) {
entry:
  %key = load i32, ptr @member_key
  %outside = call ptr @pthread_getspecific(i32 %key)
  %is_outer = icmp eq ptr %outside, null
  %all = call i32 @omp_get_max_threads()
  %is_default = icmp eq i32 %wanted, 0
  %asked = select i1 %is_default, i32 %all, i32 %wanted
  %small = icmp slt i32 %asked, 65535
  %at_most = select i1 %small, i32 %asked, i32 65535
  %size = select i1 %is_outer, i32 %at_most, i32 1 ; a region inside of another is one thread's
  %team = call ptr @acquire_team()
  %function.at = getelementptr %team, ptr %team, i64 0, i32 1
  store ptr %function, ptr %function.at
  %data.at = getelementptr %team, ptr %team, i64 0, i32 2
  store ptr %data, ptr %data.at
  %outside.at = getelementptr %team, ptr %team, i64 0, i32 3
  store ptr %outside, ptr %outside.at
  %finished = getelementptr %team, ptr %team, i64 0, i32 6
  store i32 0, ptr %finished
  %arrived = getelementptr %team, ptr %team, i64 0, i32 9
  store i32 0, ptr %arrived
  %member = getelementptr %team, ptr %team, i64 0, i32 13
  store ptr %team, ptr %member
  %number.at = getelementptr %member, ptr %member, i64 0, i32 1
  store i32 0, ptr %number.at
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  store i32 %size, ptr %members.at
  %set = call i32 @pthread_setspecific(i32 %key, ptr %member)
  %old = load atomic i64, ptr %team monotonic, align 64
  %generation = lshr i64 %old, 32
  %next = add i64 %generation, 1
  %high = shl i64 %next, 32
  %wide = zext i32 %size to i64
  %middle = shl i64 %wide, 16
  %both = or i64 %high, %middle
  %word = or i64 %both, 1
  store atomic i64 %word, ptr %team release, align 64
  %others = sub i32 %size, 1
  %has_others = icmp sgt i32 %others, 0
  br i1 %has_others, label %call, label %done
call:
  %post = atomicrmw add ptr @epoch, i32 1 seq_cst
  call void @wake(ptr @epoch, ptr @sleepers, i32 %others)
  %limit = load i32, ptr @most_workers
  %few = icmp slt i32 %others, %limit
  %all_others = or i1 %few, %meets
  %most = select i1 %all_others, i32 %others, i32 %limit
  br label %grow
grow:
  %added = call i1 @add_worker(i32 %most)
  br i1 %added, label %grow, label %grown
grown:
  %are_several = icmp sgt i32 %others, 1
  %wait_for_several = and i1 %are_several, %meets
  br i1 %wait_for_several, label %man, label %done
man:
  call void @recruit()
  br label %done
done:
  ret void
}

define void @GOMP_parallel_start(ptr %function, ptr %data, i32 %wanted) {
  call void @start(ptr %function, ptr %data, i32 %wanted, i1 true)
  ret void
}

define void @GOMP_parallel_end() {
entry:
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %team = load ptr, ptr %member
  br label %help
help:
  %ran = call i1 @run_member(ptr %team)
  br i1 %ran, label %help, label %others
others:
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  %members = load i32, ptr %members.at
  %all = sub i32 %members, 1
  %finished.at = getelementptr %team, ptr %team, i64 0, i32 6
  %sleeping = getelementptr %team, ptr %team, i64 0, i32 7
  br label %look
look:
  %finished = load atomic i32, ptr %finished.at acquire, align 4
  %complete = icmp eq i32 %finished, %all
  br i1 %complete, label %close, label %stay
stay:
  call void @wait(ptr %finished.at, i32 %finished, ptr %sleeping)
  br label %look
close:
  %alone = icmp eq i32 %all, 0
  br i1 %alone, label %leave, label %judge
judge:
  %clock = call i64 @now()
  %looked = load atomic i64, ptr @looked_at monotonic, align 8
  %since = sub i64 %clock, %looked
  %due = icmp ugt i64 %since, ${NOTICE_NS}
  br i1 %due, label %notice, label %leave
notice:
  store atomic i64 %clock, ptr @looked_at monotonic, align 8
  call void @notice(i64 %clock)
  br label %leave
leave:
  %outside.at = getelementptr %team, ptr %team, i64 0, i32 3
  %outside = load ptr, ptr %outside.at
  %reset = call i32 @pthread_setspecific(i32 %key, ptr %outside)
  %used = getelementptr %team, ptr %team, i64 0, i32 4
  store atomic i32 0, ptr %used release, align 4
  ret void
}

define void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  call void @start(ptr %function, ptr %data, i32 %threads, i1 true)
  call void %function(ptr %data)
  call void @GOMP_parallel_end()
  ret void
}

; The same for a function whose members meet at GOMP_barrier or not at all. Flags say that it takes any number of members,
; and when it has one.
define void @kernelyard_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  %size = call i32 @members_worth(i32 %threads, i32 %flags)
  call void @start(ptr %function, ptr %data, i32 %size, i1 false)
  call void %function(ptr %data)
  call void @GOMP_parallel_end()
  ret void
}

; members_worth(threads, flags): one while others want the cores, as members that meet would wait for each other's turns again
; and again, or one where all workers sleep and the region is shorter than waking them. Each fourth region of that kind does
; wake them: where one follows the other, they then stay awake.
define internal i32 @members_worth(i32 %threads, i32 %flags) {
entry:
  %contention = and i32 %flags, ${ALONE_IF_CONTENDED}
  %sleep = and i32 %flags, ${ALONE_IF_ASLEEP}
  %heeds_contention = icmp ne i32 %contention, 0
  br i1 %heeds_contention, label %judge, label %next
judge:
  %clock = call i64 @now()
  %until = load atomic i64, ptr @contended_until monotonic, align 8
  %contended = icmp ult i64 %clock, %until
  br i1 %contended, label %one, label %next
next:
  %heeds_sleep = icmp ne i32 %sleep, 0
  br i1 %heeds_sleep, label %look, label %all
look:
  %sleepers = load atomic i32, ptr @sleepers monotonic, align 4
  %workers = load atomic i32, ptr @workers monotonic, align 4
  %some_awake = icmp slt i32 %sleepers, %workers
  br i1 %some_awake, label %all, label %asleep
asleep:
  %earlier = atomicrmw add ptr @left_asleep, i32 1 monotonic
  %place = and i32 %earlier, 3
  %is_due = icmp eq i32 %place, 3
  br i1 %is_due, label %all, label %one
all:
  ret i32 %threads
one:
  ret i32 1
}

; recruit(): a worker for each member of all teams, where a team cannot go on without each of its members
define internal void @recruit() {
entry:
  %used = load atomic i32, ptr @teams_used acquire, align 4
  br label %scan
scan:
  %n = phi i32 [ 0, %entry ], [ %next, %look ]
  %sum = phi i32 [ 0, %entry ], [ %more, %look ]
  %some = icmp ult i32 %n, %used
  br i1 %some, label %look, label %grow
look:
  %team = getelementptr [${TEAMS} x %team], ptr @teams, i64 0, i32 %n
  %word = load atomic i64, ptr %team acquire, align 64
  %size.high = lshr i64 %word, 16
  %size.wide = and i64 %size.high, 65535
  %size = trunc i64 %size.wide to i32
  %used.at = getelementptr %team, ptr %team, i64 0, i32 4
  %is_used = load atomic i32, ptr %used.at acquire, align 4
  %others = sub i32 %size, 1
  %wanted = mul i32 %others, %is_used
  %more = add i32 %sum, %wanted
  %next = add i32 %n, 1
  br label %scan
grow:
  %added = call i1 @add_worker(i32 %sum)
  br i1 %added, label %grow, label %done
done:
  ret void
}

define void @GOMP_barrier() {
entry:
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %is_alone = icmp eq ptr %member, null
  br i1 %is_alone, label %done, label %meet
meet:
  %team = load ptr, ptr %member
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  %members = load i32, ptr %members.at
  %arrived.at = getelementptr %team, ptr %team, i64 0, i32 9
  %phase.at = getelementptr %team, ptr %team, i64 0, i32 10
  %asleep = getelementptr %team, ptr %team, i64 0, i32 11
  %phase = load atomic i32, ptr %phase.at acquire, align 4
  %before = atomicrmw add ptr %arrived.at, i32 1 seq_cst
  %arrived = add i32 %before, 1
  %is_last = icmp eq i32 %arrived, %members
  br i1 %is_last, label %open, label %count
open:
  store atomic i32 0, ptr %arrived.at monotonic, align 4
  %opened = atomicrmw add ptr %phase.at, i32 1 seq_cst
  call void @wake(ptr %phase.at, ptr %asleep, i32 2147483647)
  br label %done
count:
  %word = load atomic i64, ptr %team acquire, align 64
  %claimed = and i64 %word, 65535
  %all = zext i32 %members to i64
  %missing = icmp ult i64 %claimed, %all
  br i1 %missing, label %call, label %stay
call:
  call void @recruit()
  %called = atomicrmw add ptr @naps, i32 1 seq_cst
  call void @wake(ptr @naps, ptr @nappers, i32 2147483647)
  br label %stay
stay:
  call void @wait(ptr %phase.at, i32 %phase, ptr %asleep)
  br label %done
done:
  ret void
}

; --- loops of a region ------------------------------------------------------------------------------------------------
define zeroext i1 @GOMP_loop_static_start(i64 %start, i64 %end, i64 %step, i64 %chunk, ptr %from, ptr %to) {
entry:
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %is_alone = icmp eq ptr %member, null
  br i1 %is_alone, label %whole, label %begin
whole:
  store i64 %start, ptr %from
  store i64 %end, ptr %to
  %some = icmp ne i64 %start, %end
  ret i1 %some
begin:
  %start.at = getelementptr %member, ptr %member, i64 0, i32 3
  store i64 %start, ptr %start.at
  %end.at = getelementptr %member, ptr %member, i64 0, i32 4
  store i64 %end, ptr %end.at
  %step.at = getelementptr %member, ptr %member, i64 0, i32 5
  store i64 %step, ptr %step.at
  %chunk.at = getelementptr %member, ptr %member, i64 0, i32 6
  store i64 %chunk, ptr %chunk.at
  %turn.at = getelementptr %member, ptr %member, i64 0, i32 7
  store i64 0, ptr %turn.at
  %first = call i1 @GOMP_loop_static_next(ptr %from, ptr %to)
  ret i1 %first
}

; Without a chunk's size each member has one share, and the first ones take one iteration of the remainder each; with one
; the members take chunks by turns.
define zeroext i1 @GOMP_loop_static_next(ptr %from, ptr %to) {
entry:
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %is_alone = icmp eq ptr %member, null
  br i1 %is_alone, label %none, label %look
look:
  %number.at = getelementptr %member, ptr %member, i64 0, i32 1
  %number.narrow = load i32, ptr %number.at
  %number = zext i32 %number.narrow to i64
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  %members.narrow = load i32, ptr %members.at
  %members = zext i32 %members.narrow to i64
  %start.at = getelementptr %member, ptr %member, i64 0, i32 3
  %start = load i64, ptr %start.at
  %end.at = getelementptr %member, ptr %member, i64 0, i32 4
  %end = load i64, ptr %end.at
  %step.at = getelementptr %member, ptr %member, i64 0, i32 5
  %step = load i64, ptr %step.at
  %chunk.at = getelementptr %member, ptr %member, i64 0, i32 6
  %chunk = load i64, ptr %chunk.at
  %turn.at = getelementptr %member, ptr %member, i64 0, i32 7
  %turn = load i64, ptr %turn.at
  %next_turn = add i64 %turn, 1
  store i64 %next_turn, ptr %turn.at
  %length = sub i64 %end, %start
  %is_up = icmp sgt i64 %step, 0
  %short = select i1 %is_up, i64 -1, i64 1
  %filled = add i64 %length, %step
  %rounded = add i64 %filled, %short
  %steps = sdiv i64 %rounded, %step
  %is_shared = icmp eq i64 %chunk, 0
  br i1 %is_shared, label %share, label %deal
share:
  %is_first = icmp eq i64 %turn, 0
  br i1 %is_first, label %part, label %none
part:
  %even = sdiv i64 %steps, %members
  %rest = srem i64 %steps, %members
  %extra = icmp slt i64 %number, %rest
  %one = zext i1 %extra to i64
  %count = add i64 %even, %one
  %low.even = mul i64 %number, %count
  %behind = select i1 %extra, i64 0, i64 %rest
  %low.part = add i64 %low.even, %behind
  %high.part = add i64 %low.part, %count
  br label %give
deal:
  %dealt = mul i64 %turn, %members
  %place = add i64 %dealt, %number
  %low.chunk = mul i64 %place, %chunk
  %full = add i64 %low.chunk, %chunk
  %ends = icmp slt i64 %full, %steps
  %high.chunk = select i1 %ends, i64 %full, i64 %steps
  br label %give
give:
  %low = phi i64 [ %low.part, %part ], [ %low.chunk, %deal ]
  %high = phi i64 [ %high.part, %part ], [ %high.chunk, %deal ]
  %some = icmp slt i64 %low, %high
  br i1 %some, label %store, label %none
store:
  %low.offset = mul i64 %low, %step
  %low.value = add i64 %start, %low.offset
  store i64 %low.value, ptr %from
  %high.offset = mul i64 %high, %step
  %high.value = add i64 %start, %high.offset
  store i64 %high.value, ptr %to
  ret i1 true
none:
  ret i1 false
}

define void @GOMP_loop_end_nowait() {
  ret void
}

; --- omp.h ------------------------------------------------------------------------------------------------------------
define i32 @omp_get_thread_num() {
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %is_alone = icmp eq ptr %member, null
  br i1 %is_alone, label %first, label %some
first:
  ret i32 0
some:
  %number.at = getelementptr %member, ptr %member, i64 0, i32 1
  %number = load i32, ptr %number.at
  ret i32 %number
}

define i32 @omp_get_num_threads() {
  %key = load i32, ptr @member_key
  %member = call ptr @pthread_getspecific(i32 %key)
  %is_alone = icmp eq ptr %member, null
  br i1 %is_alone, label %one, label %some
one:
  ret i32 1
some:
  %members.at = getelementptr %member, ptr %member, i64 0, i32 2
  %members = load i32, ptr %members.at
  ret i32 %members
}

define i32 @omp_in_parallel() {
  %members = call i32 @omp_get_num_threads()
  %are_more = icmp sgt i32 %members, 1
  %answer = zext i1 %are_more to i32
  ret i32 %answer
}

define i32 @omp_get_max_threads() {
  %key = load i32, ptr @threads_key
  %value = call ptr @pthread_getspecific(i32 %key)
  %is_unset = icmp eq ptr %value, null
  %wide = ptrtoint ptr %value to i64
  %own = trunc i64 %wide to i32
  %default = load i32, ptr @default_threads
  %threads = select i1 %is_unset, i32 %default, i32 %own
  ret i32 %threads
}

define void @omp_set_num_threads(i32 %threads) {
  %key = load i32, ptr @threads_key
  %is_some = icmp sgt i32 %threads, 0
  %least = select i1 %is_some, i32 %threads, i32 1
  %wide = zext i32 %least to i64
  %value = inttoptr i64 %wide to ptr
  %set = call i32 @pthread_setspecific(i32 %key, ptr %value)
  ret void
}

; --- the process ------------------------------------------------------------------------------------------------------
; begin_pool(workers, threads): once, before all else; workers: at most so many without a barrier's need; 0, or an error
define i32 @kernelyard_begin_pool(i32 %workers, i32 %threads) {
entry:
  store i32 %workers, ptr @most_workers
  store i32 %threads, ptr @default_threads
  %status = call i32 @pthread_key_create(ptr @member_key, ptr null)
  %other_status = call i32 @pthread_key_create(ptr @threads_key, ptr null)
  %third_status = call i32 @pthread_key_create(ptr @preemptions_key, ptr null)
  %either = or i32 %status, %other_status
  %any = or i32 %either, %third_status
  ret i32 %any
}

; reset_pool(): in a child process, which has none of its parent's workers
define void @kernelyard_reset_pool() {
entry:
  store i32 0, ptr @workers
  store i32 0, ptr @sleepers
  store i32 0, ptr @nappers
  store i64 0, ptr @contended_until
  %used = load i32, ptr @teams_used
  br label %scan
scan:
  %n = phi i32 [ 0, %entry ], [ %next, %clear ]
  %more = icmp ult i32 %n, %used
  br i1 %more, label %clear, label %done
clear:
  %team = getelementptr [${TEAMS} x %team], ptr @teams, i64 0, i32 %n
  store i64 0, ptr %team
  %used.at = getelementptr %team, ptr %team, i64 0, i32 4
  store i32 0, ptr %used.at
  %starter = getelementptr %team, ptr %team, i64 0, i32 7
  store i32 0, ptr %starter
  %asleep = getelementptr %team, ptr %team, i64 0, i32 11
  store i32 0, ptr %asleep
  %next = add i32 %n, 1
  br label %scan
done:
  ret void
}
