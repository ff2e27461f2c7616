// Numbers, durations and times as text.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const none = "–";
export const count = (number) => (number === null || number === undefined ? none : whole.format(number));
export const compact = (number) => (number === null || number === undefined ? none : short.format(number));
export const plural = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return none;
  const sign = seconds < 0 ? "−" : "";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 10) return `${sign}${s.toFixed(1)} s`;
  if (s < 90) return `${sign}${Math.round(s)} s`;
  if (s < 5400) return `${sign}${Math.round(s / 60)} min`;
  if (s < 129600) return `${sign}${Math.round(s / 3600)} h`;
  return `${sign}${Math.round(s / 86400)} d`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return none;
  if (perSecond === 0) return "0/s";
  return `${perSecond < 10 ? perSecond.toFixed(perSecond < 1 ? 2 : 1) : compact(perSecond)}/s`;
}

/** Of an overdue pipeline: the age of its oldest unprocessed record, and what its freshness allows. */
export const overdueText = (row) => `oldest record ${duration(row.oldest_seconds)} old, allowed ${duration(row.freshness_seconds)}`;

/** How far the results of a pipeline are sent to its topic. */
export const forwardingText = (sent) =>
  sent.unsent
    ? `the topic ${sent.topic} lacks ${plural(sent.unsent, "result")}, of which the oldest was committed ${duration(sent.unsent_seconds)} ago`
    : `the topic ${sent.topic} has all ${count(sent.sent_sequence)}`;

const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A moment in the reader's time zone, without the day if that is today. */
export function moment(text) {
  if (!text) return none;
  const at = new Date(text);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}

export const ago = (text) => (text ? `${duration(Math.max(0, (Date.now() - new Date(text)) / 1000))} ago` : none);
