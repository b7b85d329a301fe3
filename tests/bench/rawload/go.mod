module rawload

go 1.21
