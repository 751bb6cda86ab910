from torchcaps.explorer.page import explore as explore
