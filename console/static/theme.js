// Runs before the first paint, so that a chosen theme does not flash in the other one.
{
  let theme = "system";
  try {
    theme = JSON.parse(localStorage.getItem("nsq-console") ?? "{}").theme ?? "system";
  } catch {
    // No storage, or not ours: the system's theme it is.
  }
  document.documentElement.dataset.theme = theme;
}
