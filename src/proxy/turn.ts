/**
 * The end of a turn of the loop: everything that has come in by now has been read. What is sent then is sent together, so
 * that whoever waits on the other side of many connections is woken once for all of them, not once for each.
 */

export interface Turning {
  turnEnded(): void;
}

let waiting: Turning[] = [];

/** Calls `task.turnEnded()` once, before anything else is read. */
export function atTurnsEnd(task: Turning): void {
  if (waiting.push(task) === 1) setImmediate(endTurn);
}

function endTurn(): void {
  const tasks = waiting;
  waiting = [];
  for (const task of tasks) task.turnEnded();
}
