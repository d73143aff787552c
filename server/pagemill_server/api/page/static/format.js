// Numbers as people read them. Pure; each gives [figure, unit].

const grouped = new Intl.NumberFormat("en-US");

export const whole = (number) => grouped.format(Math.round(number));

export function perSecond(number) {
  return [number < 9.95 ? number.toFixed(1) : whole(number), "/s"];
}

export function percent(share) {
  const hundredths = 100 * share;
  return [hundredths > 0 && hundredths < 9.95 ? hundredths.toFixed(1) : whole(hundredths), "%"];
}

export function seconds(time) {
  if (time < 0.00995) return [(1000 * time).toFixed(1), "ms"];
  if (time < 0.9995) return [whole(1000 * time), "ms"];
  if (time < 99.5) return [time.toFixed(time < 9.95 ? 2 : 1), "s"];
  return [whole(time / 60), "min"];
}

export const words = ([figure, unit]) => (unit === "%" || unit === "/s" ? figure + unit : `${figure} ${unit}`);

// For an age, where the last digits would only flicker.
export function age(time) {
  if (time < 60) return `${Math.floor(time)} s`;
  if (time < 3600) return `${Math.floor(time / 60)} min ${Math.floor(time % 60)} s`;
  return `${Math.floor(time / 3600)} h ${Math.floor((time % 3600) / 60)} min`;
}
